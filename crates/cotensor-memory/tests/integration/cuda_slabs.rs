//! Slabs in the memory of CUDA devices, on a fake driver.

use cotensor_core::testing::conformance;
use cotensor_core::{ErrorKind, Memory, MemoryKind, Segment, SlabMemory};
use cotensor_fake_cuda::FakeCuda;
use cotensor_memory::{CudaDriver, CudaMemory};
use std::os::fd::OwnedFd;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn start() -> (FakeCuda, CudaMemory) {
    let fake = FakeCuda::start().unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memory = CudaMemory::new(&driver, driver.devices().unwrap().remove(0));
    (fake, memory)
}

fn fd_of(slab: &dyn SlabMemory) -> OwnedFd {
    slab.fd().try_clone_to_owned().unwrap()
}

fn read(segment: &dyn Segment, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xFF; len];
    segment.read_at(offset, &mut bytes).unwrap();
    bytes
}

fn put(slab: &dyn SlabMemory, bytes: &[u8]) -> Arc<dyn Segment> {
    slab.copy_of(bytes).unwrap().freeze().unwrap()
}

#[test]
fn slab_conforms_and_leaks_nothing() {
    let (fake, memory) = start();
    assert!(memory.has_slabs());
    let slab = memory.create_slab(2 * MIB).unwrap();
    assert_eq!((slab.device(), slab.kind(), slab.size_bytes()), (memory.device(), MemoryKind::Slab, 2 * MIB));
    conformance(&*slab);
    assert!(slab.is_unused());
    drop(slab);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn segments_of_a_slab_share_one_allocation_and_one_descriptor() {
    let (fake, memory) = start();
    let slab = memory.create_slab(2 * MIB).unwrap();
    let segments: Vec<_> = (0..100u8).map(|value| put(&*slab, &vec![value; 10_000])).collect();
    assert_eq!(fake.used_bytes(0).unwrap(), 2 << 20);
    let found = memory.import(fd_of(&*slab), 2 * MIB, MemoryKind::Slab).unwrap();
    assert_eq!((found.len(), found.kind(), fake.used_bytes(0).unwrap()), (2 * MIB, MemoryKind::Slab, 2 << 20));
    for (value, segment) in segments.iter().enumerate() {
        assert_eq!((segment.kind(), segment.len()), (MemoryKind::Slab, 10_000));
        assert_eq!(segment.fd_offset() % 256, 0);
        let expected = vec![value as u8; 10_000];
        assert!(read(&**segment, 0, 10_000) == expected && read(&*found, segment.fd_offset(), 10_000) == expected);
        assert_eq!(segment.read_at(1, &mut [0; 10_000]).unwrap_err().kind(), ErrorKind::Invalid);
        let base = segments[0].device_address().unwrap() - segments[0].fd_offset() as u64;
        assert_eq!(segment.device_address().unwrap(), base + segment.fd_offset() as u64);
    }
    // A part of the slab for one tensor has the mapping of all parts, and keeps the memory.
    let part = found.for_tensor(&found);
    assert_eq!(part.device_address().unwrap(), found.device_address().unwrap());
    drop((segments, slab, found));
    assert_eq!((read(&*part, 0, 1), fake.used_bytes(0).unwrap()), (vec![0], 2 << 20));
    drop(part);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn range_is_used_again_after_its_segment() {
    let (_fake, memory) = start();
    let slab = memory.create_slab(2 * MIB).unwrap();
    let found = memory.import(fd_of(&*slab), 2 * MIB, MemoryKind::Slab).unwrap();
    assert!(read(&*found, 0, 2 * MIB).iter().all(|byte| *byte == 0), "no bytes of former programs");
    let (first, second) = (put(&*slab, &[1; MIB]), put(&*slab, &[2; MIB]));
    assert_eq!(slab.reserve(1).err().unwrap().kind(), ErrorKind::OverBudget);
    let again = Arc::clone(&first);
    drop(first);
    assert_eq!(slab.reserve(1).err().unwrap().kind(), ErrorKind::OverBudget, "it has a segment");
    assert_eq!(read(&*again, 0, MIB), [1; MIB]);
    drop(again);
    let written = slab.reserve_unzeroed(10).unwrap().freeze().unwrap();
    assert_eq!((written.fd_offset(), read(&*written, 0, 10)), (0, vec![1; 10]));
    let clean = slab.reserve(10).unwrap().freeze().unwrap();
    assert_eq!((clean.fd_offset(), read(&*clean, 0, 10)), (256, vec![0; 10]));
    assert_eq!(read(&*second, 0, MIB), [2; MIB]);
}

#[test]
fn unpublished_range_has_no_address() {
    let (_fake, memory) = start();
    let slab = memory.create_slab(2 * MIB).unwrap();
    let mut range = slab.reserve(100).unwrap();
    let error = range.device_address().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("reserve it aliased"), "{error}");
    assert_eq!(range.write_at(90, &[0; 11]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(slab.reserve_aliased(100).err().unwrap().kind(), ErrorKind::Unsupported);
}

#[test]
fn failed_slab_gives_its_memory_back() {
    let (fake, memory) = start();
    for function in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async"] {
        fake.fail(function, 4711).unwrap();
        assert_eq!(memory.create_slab(2 * MIB).err().unwrap().kind(), ErrorKind::Io, "{function}");
        fake.repair().unwrap();
        assert_eq!(fake.used_bytes(0).unwrap(), 0, "{function}");
    }
    fake.fail("cuMemExportToShareableHandle", 4711).unwrap();
    assert!(memory.create_slab(2 * MIB).is_err());
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
    fake.repair().unwrap();
    let slab = memory.create_slab(2 * MIB).unwrap();
    fake.fail("cuMemcpyHtoDAsync_v2", 4711).unwrap();
    assert!(slab.copy_of(&[1; 100]).is_err());
    fake.repair().unwrap();
    assert!(slab.is_unused());
}
