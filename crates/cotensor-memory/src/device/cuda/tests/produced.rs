//! Memory that another library of the process has for its arrays.

use super::{Library, started};
use crate::device::cuda::memory::CudaMemory;
use cotensor_core::{ErrorKind, Memory, MemoryKind, Segment, SlabMemory};
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// The array at an address as a published range, after the work of `library`.
fn published(
    memory: &CudaMemory,
    library: &Library,
    address: u64,
    len: usize,
    owner: Arc<()>,
) -> (Arc<dyn SlabMemory>, Arc<dyn Segment>) {
    // SAFETY: the stream is the library's.
    unsafe { memory.wait_for(library.stream) }.unwrap();
    let (slab, range) = memory.produced_at(address, len).unwrap().share(Box::new(owner)).unwrap();
    (slab, range.freeze().unwrap())
}

fn read(segment: &dyn Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len()];
    segment.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Ends memory of `produce`, after the work of a stream.
fn end(memory: &CudaMemory, address: u64, stream: usize) -> cotensor_core::Result<()> {
    // SAFETY: the tests use the address in this stream.
    unsafe { memory.end_produced(address, stream) }
}

#[test]
fn array_is_published_where_it_is() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    let address = memory.produce(3 * MIB).unwrap();
    library.fill(address + 512, 7, 100);
    let (slab, segment) = published(&memory, &library, address + 512, 100, Arc::default());
    assert_eq!((slab.size_bytes(), segment.fd_offset(), segment.kind()), (4 * MIB, 512, MemoryKind::Slab));
    assert_eq!(fake.used_bytes(0).unwrap(), 4 << 20, "there is one copy");
    let whole = memory.import(slab.fd().try_clone_to_owned().unwrap(), 4 * MIB, MemoryKind::Slab).unwrap();
    assert_eq!((read(&*segment), read(&*whole)[510..514].to_vec()), (vec![7; 100], vec![0, 0, 7, 7]));
    assert_ne!(segment.device_address().unwrap(), address + 512, "readers of this process have read-only addresses");
    // The library can write its array after the publication, which all readers see.
    library.fill(address + 512, 8, 1);
    // SAFETY: the stream is the library's.
    unsafe { memory.wait_for(library.stream) }.unwrap();
    assert_eq!(read(&*whole)[512], 8);
    drop((slab, segment, whole));
    end(&memory, address, library.stream).unwrap();
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn memory_ends_after_the_work_of_its_stream_and_readers_keep_theirs() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    for stream in [library.stream, 0] {
        let address = memory.produce(100).unwrap();
        library.fill_in(stream, address, 7, 100);
        // SAFETY: the stream is the library's, or the default one.
        unsafe { memory.wait_for(stream) }.unwrap();
        let (slab, segment) = published(&memory, &library, address, 100, Arc::default());
        library.fill_in(stream, address + 1024, 8, 100);
        end(&memory, address, stream).unwrap();
        assert_eq!(read(&*segment), [7; 100], "no work was left for an unmapped address");
        drop(segment);
        assert_eq!(fake.used_bytes(0).unwrap(), 2 << 20, "the slab is still a store's");
        drop(slab);
        assert_eq!(fake.used_bytes(0).unwrap(), 0);
        assert_eq!(end(&memory, address, stream).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn library_gets_its_array_back_after_the_last_lease() {
    let (_fake, driver, memory) = started();
    let (library, owner) = (Library::open(&driver), Arc::new(()));
    let address = memory.produce(100).unwrap();
    let (slab, segment) = published(&memory, &library, address, 100, Arc::clone(&owner));
    let again = memory.produced_at(address, 50).unwrap().share(Box::new(())).err().unwrap();
    assert_eq!((again.kind(), slab.is_unused()), (ErrorKind::Conflict, false));
    // Work of this process that reads the tensor ends first.
    let mut target = [1; 100];
    library.read(segment.device_address().unwrap(), &mut target);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(segment);
    assert_eq!((Arc::strong_count(&owner), slab.is_unused(), target), (1, true, [0; 100]));
    // A range that is given up before its publication, too.
    drop(memory.produced_at(address, 100).unwrap().share(Box::new(Arc::clone(&owner))).unwrap());
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn array_without_news_of_leases_stays_on_purpose() {
    let (_fake, driver, memory) = started();
    let (library, owner) = (Library::open(&driver), Arc::new(()));
    let address = memory.produce(100).unwrap();
    let other = Arc::new(());
    let (slab, segment) = published(&memory, &library, address, 100, Arc::clone(&owner));
    let (_, of_other_store) = published(&memory, &library, address + 512, 100, Arc::clone(&other));
    segment.retire();
    drop((segment, of_other_store));
    assert_eq!([&owner, &other].map(Arc::strong_count), [2, 1], "another store of the process has news");
    // The memory is a slab of the next array, too.
    let (next, segment) = published(&memory, &library, address, 100, Arc::clone(&other));
    assert!(std::ptr::addr_eq(Arc::as_ptr(&next), Arc::as_ptr(&slab)));
    drop(segment);
    assert_eq!(Arc::strong_count(&other), 1);
}

#[test]
fn places_are_those_where_tensors_may_start() {
    let (_fake, _, memory) = started();
    let address = memory.produce(2 * MIB).unwrap();
    let is_place = |offset: u64, len| memory.produced_at(address + offset, len).is_some();
    assert!(is_place(0, 2 * MIB) && is_place(256, 1));
    assert!(!is_place(4, 4) && !is_place(0, 0) && !is_place(256, 2 * MIB) && !is_place(2 << 20, 1));
    assert!(memory.produced_at(address - 1, 1).is_none());
}

#[test]
fn device_without_memory_is_an_error_at_once() {
    let (fake, _, memory) = started();
    fake.set_memory_bytes(4 << 20).unwrap();
    let address = memory.produce(4 * MIB).unwrap();
    let error = memory.produce(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    assert!(error.to_string().contains("bytes left"), "{error}");
    end(&memory, address, 0).unwrap();
    memory.produce(1).unwrap();
    assert_eq!(memory.produce(usize::MAX).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn memory_whose_work_is_captured_stays_on_purpose() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    let address = memory.produce(100).unwrap();
    let captured = library.begin_capture();
    let other = memory.produce(100).unwrap();
    assert_eq!(end(&memory, address, captured).unwrap_err().kind(), ErrorKind::Conflict);
    end(&memory, other, library.stream).unwrap();
    assert_eq!(library.end_capture(captured), 0, "the capture is not disturbed");
    library.fill(address, 7, 100);
    assert_eq!(fake.used_bytes(0).unwrap(), 2 << 20);
}
