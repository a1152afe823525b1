//! Memory of one device that another one reads.

use super::Library;
use crate::device::cuda::driver::CudaDriver;
use crate::device::cuda::memory::CudaMemory;
use cotensor_core::{ErrorKind, Memory, MemoryKind};
use cotensor_fake_cuda::FakeCuda;
use std::sync::Arc;

/// A machine with two devices, and their memories.
fn two_devices(peer_access: bool) -> (FakeCuda, Arc<CudaDriver>, [CudaMemory; 2]) {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    fake.set_peer_access(peer_access).unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memories = CudaMemory::all(&driver).unwrap().try_into().unwrap();
    (fake, driver, memories)
}

#[test]
fn peer_reads_the_memory_and_its_work_ends_before_the_address() {
    let (fake, driver, [own, peer]) = two_devices(true);
    let made = own.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let found = own.import(made.fd().unwrap().try_clone_to_owned().unwrap(), 100, MemoryKind::Device).unwrap();
    let library = Library::open_on(&driver, 1);
    let slab = own.create_slab(2 << 20).unwrap();
    let small = slab.copy_of(&[8; 100]).unwrap().freeze().unwrap();
    for (segment, value) in [(made, 7), (found, 7), (small, 8)] {
        let mut target = [0; 100];
        let address = peer.peer_address(&*segment).unwrap().unwrap();
        assert_eq!(peer.peer_address(&*segment).unwrap(), Some(address), "the driver is asked once");
        library.read(address, &mut target);
        drop(segment);
        assert_eq!(target, [value; 100], "the work of the peer has ended");
    }
    drop(slab);
    assert_eq!([0, 1].map(|device| fake.used_bytes(device).unwrap()), [0, 0], "nothing was copied");
}

#[test]
fn address_has_a_device_on_each_thread() {
    let (_fake, _driver, memories) = two_devices(false);
    let segments = memories.each_ref().map(|memory| memory.reserve(100).unwrap());
    let addresses = segments.each_ref().map(|segment| segment.device_address().unwrap());
    // This thread has no current context.
    let found = addresses.map(|address| CudaMemory::among(&memories, address).unwrap().ordinal());
    assert_eq!(found, [0, 1]);
    let error = CudaMemory::among(&memories, 4096).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn refused_peer_access_is_no_address() {
    let (fake, driver, [own, peer]) = two_devices(false);
    let made = own.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    assert_eq!(peer.peer_address(&*made).unwrap(), None);
    fake.set_peer_access(true).unwrap();
    let other = FakeCuda::start().unwrap();
    let other = CudaMemory::all(&CudaDriver::load(&other.library()).unwrap()).unwrap().remove(0);
    assert_eq!(other.peer_address(&*made).unwrap(), None, "the segment is of another driver");
    // Copies between the devices pass through the host.
    let source = made.device_address().unwrap();
    let mut target = peer.reserve(100).unwrap();
    // SAFETY: the segment has these bytes.
    unsafe { own.bytes_at(source, 100) }.copy_to(&mut *target, 0).unwrap();
    let copy = target.freeze().unwrap();
    let mut bytes = [0; 100];
    copy.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100]);
    drop(driver);
}
