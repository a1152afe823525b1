//! What only this module can do: work of other code, forks, writes to published memory.

mod captures;
mod peers;
mod produced;

use super::driver::CudaDriver;
use super::functions::Vendor;
use super::memory::CudaMemory;
use super::segment::CudaSegment;
use cotensor_core::testing::{conformance, import_conformance};
use cotensor_core::{Error, ErrorKind, Memory, MemoryKind, Segment};
use cotensor_fake_cuda::{CAPTURE_INVALIDATED, FakeCuda, ILLEGAL_ADDRESS};
use std::sync::Arc;

/// Another library of this process, with a stream of its own in the primary context.
struct Library {
    driver: Arc<CudaDriver>,
    stream: usize,
}

impl Library {
    fn open(driver: &Arc<CudaDriver>) -> Self {
        Self::open_on(driver, 0)
    }

    /// On a device, which is then the current one of the thread.
    fn open_on(driver: &Arc<CudaDriver>, device: i32) -> Self {
        let (mut context, mut stream) = (0, 0);
        // SAFETY: both values outlive the calls.
        let codes = unsafe {
            let functions = &driver.functions;
            let retained = (functions.retain_context)(&raw mut context, device);
            let pushed = (functions.push_context)(context);
            [retained, pushed, (functions.create_stream)(&raw mut stream, 0)]
        };
        assert_eq!(codes, [0; 3]);
        Self { driver: Arc::clone(driver), stream }
    }

    /// Gives the device work, and does not wait for it.
    fn fill(&self, address: u64, value: u8, len: usize) {
        self.fill_in(self.stream, address, value, len);
    }

    /// As [`fill`](Self::fill), in another stream.
    fn fill_in(&self, stream: usize, address: u64, value: u8, len: usize) {
        // SAFETY: the address is of a segment that waits for the work.
        let code = unsafe { (self.driver.functions.fill)(address, value, len, stream) };
        assert_eq!(code, 0);
    }

    /// Starts to capture a stream of its own, in the mode that prohibits the most calls of all threads. Returns the stream.
    fn begin_capture(&self) -> usize {
        let (mut stream, library) = (0, self.library());
        // SAFETY: `stream` outlives the call; the types are those of `cuda.h`.
        let codes = unsafe {
            let begin = library.get::<unsafe extern "C" fn(usize, i32) -> u32>("cuStreamBeginCapture_v2").unwrap();
            [(self.driver.functions.create_stream)(&raw mut stream, 1), begin(stream, 0)]
        };
        assert_eq!(codes, [0; 2]);
        stream
    }

    /// Ends the capture. Returns the driver's result.
    fn end_capture(&self, stream: usize) -> u32 {
        let (mut graph, library) = (0, self.library());
        // SAFETY: `graph` outlives the call; the types are those of `cuda.h`.
        unsafe {
            let end = library.get::<unsafe extern "C" fn(usize, *mut usize) -> u32>("cuStreamEndCapture").unwrap();
            end(stream, &raw mut graph)
        }
    }

    /// Ends the context, in which others of the process have streams.
    fn reset(&self) {
        let library = self.library();
        // SAFETY: the type is that of `cuda.h`.
        let code = unsafe { library.get::<unsafe extern "C" fn(i32) -> u32>("cuDevicePrimaryCtxReset_v2").unwrap()(0) };
        assert_eq!(code, 0);
    }

    fn library(&self) -> libloading::Library {
        // SAFETY: the library is loaded already.
        unsafe { libloading::Library::new(self.driver.path()) }.unwrap()
    }

    /// As [`fill`](Self::fill).
    fn read(&self, address: u64, target: &mut [u8]) {
        let (pointer, len) = (target.as_mut_ptr().cast(), target.len());
        // SAFETY: the segment waits for the work, and the test keeps `target` longer.
        let code = unsafe { (self.driver.functions.copy_to_host)(pointer, address, len, self.stream) };
        assert_eq!(code, 0);
    }
}

/// A driver that no other test uses, and the memory of its first device.
fn started() -> (FakeCuda, Arc<CudaDriver>, CudaMemory) {
    let fake = FakeCuda::start().unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memory = CudaMemory::new(&driver, driver.devices().unwrap().remove(0));
    (fake, driver, memory)
}

/// AMD's driver has other results in cases that this does not reach. It has not been tried.
#[test]
fn memory_conforms_by_the_names_of_the_other_vendor() {
    let fake = FakeCuda::start().unwrap();
    fake.set_version(70_100_000).unwrap();
    // SAFETY: the library has no initializers.
    let library = unsafe { libloading::Library::new(fake.library()) }.unwrap();
    let driver = CudaDriver::initialize(library, &fake.library(), Vendor::Amd).unwrap();
    assert_eq!((driver.interface(), &*driver.version()), ("HIP", "7.1"));
    let memory = CudaMemory::new(&driver, driver.devices().unwrap().remove(0));
    assert!(memory.is_amd());
    conformance(&memory);
    import_conformance(&memory);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn work_of_other_libraries_ends_before_publication_and_before_the_end() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    let written = memory.reserve(100).unwrap();
    library.fill(written.device_address().unwrap(), 7, 100);
    let made = written.freeze().unwrap();
    let mut bytes = [0; 100];
    made.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100], "the publication waits for the producer's work");

    let found = memory.import(made.fd().unwrap().try_clone_to_owned().unwrap(), 100, MemoryKind::Device).unwrap();
    for segment in [made, found] {
        let mut target = [0; 100];
        library.read(segment.device_address().unwrap(), &mut target);
        drop(segment);
        assert_eq!(target, [7; 100], "the work has ended before the address did");
    }
    drop(memory.reserve(1).unwrap());
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
    // A reservation that is given up waits, too.
    let written = memory.reserve(100).unwrap();
    library.fill(written.device_address().unwrap(), 7, 100);
    drop(written);
    drop(memory.reserve(1).unwrap());
}

#[test]
fn publication_of_one_stream_waits_for_no_other_work() {
    let (fake, driver, memory) = started();
    let (library, other) = (Library::open(&driver), Library::open(&driver));
    let (mut written, unrelated) = (memory.reserve(100).unwrap(), memory.reserve(100).unwrap());
    library.fill(written.device_address().unwrap(), 7, 100);
    let mut target = [0xFF; 100];
    other.read(unrelated.device_address().unwrap(), &mut target);
    // As a collective that waits for another process.
    fake.fail("cuCtxSynchronize", 4711).unwrap();
    // SAFETY: the stream has all work that writes the segment.
    unsafe { memory.end_writes(&mut *written, library.stream) }.unwrap();
    let made = written.freeze().unwrap();
    let mut bytes = [0; 100];
    made.read_at(0, &mut bytes).unwrap();
    assert_eq!((bytes, target), ([7; 100], [0xFF; 100]), "the other stream has not run");
    // SAFETY: as above.
    let of_slab = unsafe { memory.end_writes(&mut *memory.create_slab(2 << 20).unwrap().reserve(1).unwrap(), 0) };
    assert_eq!(of_slab.unwrap_err().kind(), ErrorKind::Unsupported);
    fake.repair().unwrap();
    drop((made, unrelated));
    assert_eq!(target, [0; 100]);
}

#[test]
fn forked_process_has_errors_and_frees_nothing() {
    let (fake, driver, memory) = started();
    let segment = memory.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
    // SAFETY: the child allocates memory, which glibc supports after a fork, takes no lock of another thread, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let errors = [
            driver.devices().err(),
            memory.free_bytes().err(),
            segment.device_address().err(),
            segment.read_at(0, &mut [0]).err(),
            memory.reserve(1).err(),
            memory.import(fd, 100, MemoryKind::Device).err(),
        ];
        let clear = |error: Option<Error>| error.is_some_and(|error| error.to_string().contains("forked"));
        let code = i32::from(!errors.into_iter().all(clear));
        drop((segment, memory, driver));
        // SAFETY: ends the child without cleaning up what belongs to its parent.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(fake.call_after_fork().unwrap(), None, "the child has called the driver");
    let mut byte = [0];
    segment.read_at(99, &mut byte).unwrap();
    assert_eq!((byte, fake.used_bytes(0).unwrap()), ([7], 2 << 20));
}

#[test]
fn published_memory_is_mapped_read_only() {
    let (_fake, _, memory) = started();
    let made = memory.reserve(100).unwrap().freeze().unwrap();
    let fd = made.fd().unwrap().try_clone_to_owned().unwrap();
    let found = memory.import(fd, 100, MemoryKind::Device).unwrap();
    for segment in [made, found] {
        let segment = segment.as_any().unwrap().downcast_ref::<CudaSegment>().unwrap();
        let context = memory.opened().context().unwrap();
        let error = context.write(segment.mapping.mapping(), 0, &[1]).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
        let mut byte = [7];
        segment.read_at(0, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
}

#[test]
fn memory_of_unknown_work_stays_on_purpose() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    let (published, reserved) = (memory.reserve(100).unwrap().freeze().unwrap(), memory.reserve(100).unwrap());
    let mut target = [0xFF; 100];
    library.read(published.device_address().unwrap(), &mut target);
    reserved.device_address().unwrap();
    let captured = library.begin_capture();
    let error = reserved.freeze().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("end the capture"), "{error}");
    drop(published);
    assert_eq!(library.end_capture(captured), CAPTURE_INVALIDATED);
    // The work that was left finds the memory.
    drop(memory.reserve(1).unwrap());
    memory.opened().context().unwrap().synchronize().unwrap();
    assert_eq!(target, [0; 100]);

    // A lost context has no work.
    let segment = memory.reserve(4 << 20).unwrap().freeze().unwrap();
    segment.device_address().unwrap();
    let before = fake.used_bytes(0).unwrap();
    fake.fail("cuCtxSynchronize", ILLEGAL_ADDRESS).unwrap();
    drop(segment);
    assert_eq!(fake.used_bytes(0).unwrap(), before - (4 << 20));
}

#[test]
fn range_of_a_slab_is_used_again_after_the_work_that_reads_it() {
    let (_fake, driver, memory) = started();
    let library = Library::open(&driver);
    let slab = memory.create_slab(2 << 20).unwrap();
    let made = slab.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let found = memory.import(slab.fd().try_clone_to_owned().unwrap(), 2 << 20, MemoryKind::Slab).unwrap();
    let (part, other) = (found.for_tensor(&found), found.for_tensor(&found));
    let mut targets = [[0; 100]; 2];
    // A reader in another process gives its lease back after this wait. The producer drops the range then.
    library.read(part.device_address().unwrap(), &mut targets[0]);
    assert!(other.end_use() && targets[0] == [0; 100], "no code has the address of the other tensor");
    assert!(part.end_use() && targets[0] == [7; 100]);
    library.read(made.device_address().unwrap(), &mut targets[1]);
    drop(made);
    let again = slab.copy_of(&[8; 100]).unwrap().freeze().unwrap();
    assert_eq!((again.fd_offset(), targets[1]), (0, [7; 100]));
}

#[test]
fn range_of_a_slab_of_unknown_work_stays_on_purpose() {
    let (_fake, driver, memory) = started();
    let library = Library::open(&driver);
    let slab = memory.create_slab(2 << 20).unwrap();
    let made = slab.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let mut target = [0; 100];
    library.read(made.device_address().unwrap(), &mut target);
    let captured = library.begin_capture();
    assert!(!made.end_use());
    drop(made);
    assert_eq!(library.end_capture(captured), CAPTURE_INVALIDATED);
    let next = slab.copy_of(&[8; 100]).unwrap().freeze().unwrap();
    assert_eq!(next.fd_offset(), 256, "the range is not used again");
    memory.opened().context().unwrap().synchronize().unwrap();
    assert_eq!(target, [7; 100]);
    assert!(!slab.is_unused());
}

#[test]
fn published_range_is_mapped_read_only() {
    let (_fake, _, memory) = started();
    let slab = memory.create_slab(2 << 20).unwrap();
    let made = slab.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let found = memory.import(slab.fd().try_clone_to_owned().unwrap(), 2 << 20, MemoryKind::Slab).unwrap();
    for segment in [made, found] {
        let segment = segment.as_any().unwrap().downcast_ref::<CudaSegment>().unwrap();
        let context = memory.opened().context().unwrap();
        let error = context.write(segment.mapping.mapping(), segment.mapping.start(), &[1]).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    }
}

#[test]
fn reset_of_another_library_is_a_lost_context() {
    let (fake, driver, memory) = started();
    let segment = memory.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    segment.device_address().unwrap();
    Library::open(&driver).reset();
    for error in [segment.read_at(0, &mut [0]).unwrap_err(), memory.reserve(1).err().unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("must be started again"), "{error}");
    }
    drop(segment);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}
