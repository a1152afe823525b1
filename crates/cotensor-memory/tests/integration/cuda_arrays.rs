//! Arrays of other libraries in the memory of CUDA devices, on a fake driver.
#![allow(unsafe_code, reason = "addresses of the fake driver")]

use cotensor_core::{Device, ErrorKind, Memory, SegmentMut};
use cotensor_fake_cuda::FakeCuda;
use cotensor_memory::{CudaDriver, CudaMemory};

fn read(target: Box<dyn SegmentMut>) -> Vec<u8> {
    let segment = target.freeze().unwrap();
    let mut bytes = vec![1; segment.len()];
    segment.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn array_is_copied_to_each_memory() {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memories: Vec<CudaMemory> =
        driver.devices().unwrap().into_iter().map(|device| CudaMemory::new(&driver, device)).collect();
    assert_eq!([memories[0].ordinal(), memories[1].ordinal()], [0, 1]);
    let content: Vec<u8> = (0..3_000_000).map(|index| (index % 251) as u8).collect();
    let source = memories[1].copy_of(&content).unwrap().freeze().unwrap();
    // SAFETY: the segment has these bytes, and lives until the end of the test.
    let array = unsafe { memories[1].bytes_at(source.device_address().unwrap(), content.len()) };
    assert_eq!(array.device(), Device::Cuda(1));
    for memory in &memories {
        let mut target = memory.reserve(content.len() + 5).unwrap();
        array.copy_to(&mut *target, 5).unwrap();
        let copied = read(target);
        assert!(copied[..5] == [0; 5] && copied[5..] == content, "{memory:?}");
        let mut short = memory.reserve(content.len()).unwrap();
        let error = array.copy_to(&mut *short, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    // A range of a slab is filled on the device, too.
    let slab = memories[1].create_slab(4 << 20).unwrap();
    let (mut range, before) = (slab.reserve(content.len() + 5).unwrap(), slab.copy_of(&[7]).unwrap());
    fake.fail("cuMemcpyDtoHAsync_v2", 4711).unwrap();
    array.copy_to(&mut *range, 5).unwrap();
    fake.repair().unwrap();
    let copied = read(range);
    assert!(copied[..5] == [0; 5] && copied[5..] == content && read(before) == [7]);
    let mut part = [0; 100];
    array.read(content.len() - 100, &mut part).unwrap();
    assert_eq!(part, content[content.len() - 100..]);
    assert_eq!(array.read(content.len() - 99, &mut part).unwrap_err().kind(), ErrorKind::Invalid);
    assert_ne!(memories[0].copy_stream().unwrap().handle(), memories[1].copy_stream().unwrap().handle());
    // SAFETY: the call only looks the stream up.
    let unknown = unsafe { memories[0].wait_for(7) }.unwrap_err();
    assert!(unknown.to_string().contains("stream of the array"), "{unknown}");
    memories[0].wait().unwrap();
}
