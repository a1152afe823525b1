//! The library behaves as docs/labs/gpu.md measured an H200, and finds the mistakes that it exists for.

#![allow(clippy::unwrap_used, unsafe_code)]

use cotensor_fake_cuda::{
    CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, FakeCuda, GRANULARITY, ILLEGAL_ADDRESS, NO_DEVICE,
    NOT_INITIALIZED, OUT_OF_MEMORY, UNKNOWN,
};
use libloading::{Library, Symbol};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const READ: i32 = 1;
const READ_WRITE: i32 = 3;

/// `CUmemAllocationProp` for memory of a device that is exported as a descriptor.
#[repr(C)]
struct Properties([i32; 4], usize, [u8; 8]);

fn properties(device: i32) -> Properties {
    Properties([1, 1, 1, device], 0, [0; 8])
}

/// Calls a function of the library with arguments of the given types.
macro_rules! call {
    ($cuda:expr, $name:literal $(, $argument:expr => $kind:ty)*) => {{
        // SAFETY: the type is that of `cuda.h`; pointers are of values that outlive the call.
        unsafe {
            let function: Symbol<'_, unsafe extern "C" fn($($kind),*) -> u32> =
                $cuda.library.get($name.as_bytes()).unwrap();
            function($($argument),*)
        }
    }};
}

struct Cuda {
    fake: FakeCuda,
    library: Library,
}

fn start() -> Cuda {
    let fake = FakeCuda::start().unwrap();
    // SAFETY: the library has no initializers.
    let library = unsafe { Library::new(fake.library()) }.unwrap();
    let cuda = Cuda { fake, library };
    assert_eq!(call!(cuda, "cuInit", 0 => u32), 0);
    cuda
}

impl Cuda {
    fn create(&self, bytes: usize) -> Result<u64, u32> {
        let (mut handle, properties) = (0, properties(0));
        let code = call!(
            self, "cuMemCreate",
            &raw mut handle => *mut u64, bytes => usize, &raw const properties => *const Properties, 0 => u64
        );
        if code == 0 { Ok(handle) } else { Err(code) }
    }

    fn map(&self, handle: u64, bytes: usize, access: i32) -> Result<u64, u32> {
        let (mut address, description) = (0, [1, 0, access]);
        let codes = [
            call!(self, "cuMemAddressReserve", &raw mut address => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64),
            call!(self, "cuMemMap", address => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64),
            call!(
                self, "cuMemSetAccess",
                address => u64, bytes => usize, description.as_ptr() => *const i32, 1 => usize
            ),
        ];
        codes.into_iter().find(|code| *code != 0).map_or(Ok(address), Err)
    }

    fn export(&self, handle: u64) -> OwnedFd {
        let mut fd = -1;
        let code =
            call!(self, "cuMemExportToShareableHandle", &raw mut fd => *mut i32, handle => u64, 1 => i32, 0 => u64);
        assert_eq!(code, 0);
        // SAFETY: the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn import(&self, fd: i32) -> Result<u64, u32> {
        let mut handle = 0;
        let shareable = std::ptr::without_provenance_mut::<c_void>(fd as usize);
        let code = call!(
            self, "cuMemImportFromShareableHandle",
            &raw mut handle => *mut u64, shareable => *mut c_void, 1 => i32
        );
        if code == 0 { Ok(handle) } else { Err(code) }
    }

    fn unmap(&self, address: u64, bytes: usize) -> [u32; 2] {
        let unmapped = call!(self, "cuMemUnmap", address => u64, bytes => usize);
        [unmapped, call!(self, "cuMemAddressFree", address => u64, bytes => usize)]
    }

    /// Makes a context current, and a stream.
    fn stream(&self) -> u64 {
        let (mut context, mut stream) = (0u64, 0);
        assert_eq!(call!(self, "cuDevicePrimaryCtxRetain", &raw mut context => *mut u64, 0 => i32), 0);
        assert_eq!(call!(self, "cuCtxPushCurrent_v2", context => u64), 0);
        assert_eq!(call!(self, "cuStreamCreate", &raw mut stream => *mut u64, 1 => u32), 0);
        stream
    }

    fn write(&self, address: u64, source: &[u8], stream: u64) -> u32 {
        let pointer = source.as_ptr().cast();
        call!(self, "cuMemcpyHtoDAsync_v2", address => u64, pointer => *const c_void, source.len() => usize, stream => u64)
    }

    fn read(&self, address: u64, target: &mut [u8], stream: u64) -> u32 {
        let pointer = target.as_mut_ptr().cast();
        call!(self, "cuMemcpyDtoHAsync_v2", pointer => *mut c_void, address => u64, target.len() => usize, stream => u64)
    }

    fn wait(&self, stream: u64) -> u32 {
        call!(self, "cuStreamSynchronize", stream => u64)
    }
}

#[test]
fn memory_lives_while_a_handle_a_mapping_or_a_descriptor_does() {
    let cuda = start();
    let used = || cuda.fake.used_bytes(0).unwrap() / MIB as u64;
    let handle = cuda.create(4 * MIB).unwrap();
    let address = cuda.map(handle, 4 * MIB, READ_WRITE).unwrap();
    let fd = cuda.export(handle);
    assert_eq!(used(), 4);
    assert_eq!(call!(cuda, "cuMemRelease", handle => u64), 0);
    assert_eq!(cuda.unmap(address, 4 * MIB), [0, 0]);
    assert_eq!(used(), 4, "the descriptor keeps it");
    let again = cuda.import(fd.as_raw_fd()).unwrap();
    drop(fd);
    assert_eq!(used(), 4, "the imported handle keeps it");
    let address = cuda.map(again, 4 * MIB, READ).unwrap();
    assert_eq!(call!(cuda, "cuMemRelease", again => u64), 0);
    assert_eq!(used(), 4, "the mapping keeps it");
    assert_eq!(cuda.unmap(address, 4 * MIB), [0, 0]);
    assert_eq!(used(), 0);
}

#[test]
fn wrong_descriptors_and_sizes_have_the_measured_results() {
    let cuda = start();
    let null = std::fs::File::open("/dev/null").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let file = std::fs::File::open(cuda.fake.library()).unwrap();
    for fd in [null.as_raw_fd(), zero.as_raw_fd(), file.as_raw_fd(), 987] {
        assert_eq!(cuda.import(fd), Err(UNKNOWN));
    }
    let handle = cuda.create(4 * MIB).unwrap();
    assert_eq!(cuda.map(handle, 2 * MIB, READ), Err(801));
    assert_eq!(cuda.map(handle, 8 * MIB, READ), Err(801));
    assert_eq!(cuda.map(handle, 4 * MIB + 4096, READ), Err(1));
    assert_eq!((cuda.create(4096), cuda.create(0)), (Err(1), Err(1)));
    let mut bytes = 0;
    let of = properties(0);
    let code = call!(
        cuda, "cuMemGetAllocationGranularity",
        &raw mut bytes => *mut usize, &raw const of => *const Properties, 0 => i32
    );
    assert_eq!((code, bytes as u64), (0, GRANULARITY));
}

#[test]
fn memory_is_limited_and_a_function_fails_on_demand() {
    let cuda = start();
    cuda.fake.set_memory_bytes(4 << 20).unwrap();
    let first = cuda.create(4 * MIB).unwrap();
    assert_eq!(cuda.create(2 * MIB), Err(OUT_OF_MEMORY));
    assert_eq!(call!(cuda, "cuMemRelease", first => u64), 0);
    assert!(cuda.create(2 * MIB).is_ok());
    cuda.fake.fail("cuMemCreate", UNKNOWN).unwrap();
    assert_eq!(cuda.create(2 * MIB), Err(UNKNOWN));
    cuda.fake.repair().unwrap();
    assert!(cuda.create(2 * MIB).is_ok());
}

#[test]
fn work_runs_when_it_is_waited_for() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let stream = cuda.stream();
    let (mut source, mut target) = ([7; 100], [0; 100]);
    assert_eq!(cuda.write(address, &source, stream), 0);
    assert_eq!(cuda.read(address, &mut target, stream), 0);
    // A program that changes the source too early copies the change.
    source[0] = 8;
    assert_eq!(target[1], 0, "nothing has run");
    assert_eq!(cuda.wait(stream), 0);
    assert_eq!((target[0], target[1]), (8, 7));
    assert_eq!(call!(cuda, "cuMemsetD8Async", address + 1 => u64, 9 => u8, 2 * MIB - 1 => usize, stream => u64), 0);
    assert_eq!(cuda.read(address, &mut target, stream), 0);
    assert_eq!(call!(cuda, "cuCtxSynchronize"), 0);
    assert_eq!((target[0], target[99]), (8, 9));
    assert_eq!(call!(cuda, "cuStreamDestroy_v2", stream => u64), 0);
    let mut context = 0u64;
    assert_eq!(call!(cuda, "cuCtxPopCurrent_v2", &raw mut context => *mut u64), 0);
    assert_eq!(cuda.write(address, &source, stream), 201, "no context is current");
}

#[test]
fn writes_to_a_read_only_mapping_fail_and_the_context_stays() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ).unwrap();
    let stream = cuda.stream();
    assert_eq!(cuda.write(address, &[1; 8], stream), 1);
    let mut target = [0; 8];
    assert_eq!((cuda.read(address, &mut target, stream), cuda.wait(stream)), (0, 0));
    assert_eq!(target, [0xA5; 8], "new memory has bytes of former programs");
    assert_eq!(cuda.read(address + 2 * MIB as u64 - 4, &mut target, stream), 1, "beyond the mapping");
}

#[test]
fn work_for_an_unmapped_address_ends_the_context() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let stream = cuda.stream();
    let source = [1; 8];
    assert_eq!(cuda.write(address, &source, stream), 0);
    assert_eq!(cuda.unmap(address, 2 * MIB), [0, 0]);
    assert_eq!(cuda.wait(stream), ILLEGAL_ADDRESS);
    assert_eq!(cuda.create(2 * MIB), Err(ILLEGAL_ADDRESS), "all calls fail from now on");
}

#[test]
fn captured_stream_prohibits_calls_of_threads_that_are_not_relaxed() {
    let cuda = start();
    let (captured, other) = (cuda.stream(), cuda.stream());
    let begin = || call!(cuda, "cuStreamBeginCapture_v2", captured => u64, 0 => i32);
    let end = || {
        let mut graph = 0u64;
        call!(cuda, "cuStreamEndCapture", captured => u64, &raw mut graph => *mut u64)
    };
    assert_eq!((begin(), begin(), end(), end()), (0, 401, 0, 401));
    assert_eq!((begin(), cuda.wait(other), end()), (0, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED));
    let mut mode = 2;
    assert_eq!(call!(cuda, "cuThreadExchangeStreamCaptureMode", &raw mut mode => *mut i32), 0);
    assert_eq!(mode, 0, "the former mode");
    assert_eq!((begin(), cuda.wait(other), end()), (0, 0, 0));
    for function in ["cuCtxSynchronize", "cuStreamSynchronize"] {
        assert_eq!(begin(), 0);
        let code = match function {
            "cuCtxSynchronize" => call!(cuda, "cuCtxSynchronize"),
            _ => cuda.wait(captured),
        };
        assert_eq!((code, end()), (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED), "{function}");
    }
}

#[test]
fn contexts_are_lost_on_demand() {
    let cuda = start();
    cuda.fake.lose_contexts(std::process::id(), 719).unwrap();
    assert_eq!(cuda.create(2 * MIB), Err(719));
}

#[test]
fn the_host_cannot_use_addresses_and_a_fork_cannot_use_the_driver() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{address:x}-");
    assert!(maps.lines().any(|line| line.starts_with(&start) && line.contains("---p")), "{start} {maps}");
    // SAFETY: the child makes a call that takes no lock which another thread may have, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = call!(cuda, "cuInit", 0 => u32);
        // SAFETY: ends the child without cleaning up what belongs to its parent.
        unsafe { libc::_exit(if code == NOT_INITIALIZED { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(cuda.fake.call_after_fork().unwrap().as_deref(), Some("cuInit"));
}

#[test]
fn other_devices_need_peer_access() {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    // SAFETY: the library has no initializers.
    let library = unsafe { Library::new(fake.library()) }.unwrap();
    let cuda = Cuda { fake, library };
    assert_eq!(call!(cuda, "cuInit", 0 => u32), 0);
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ).unwrap();
    let description = [1, 1, READ];
    let set = || call!(cuda, "cuMemSetAccess", address => u64, 2 * MIB => usize, description.as_ptr() => *const i32, 1 => usize);
    assert_eq!(set(), 801);
    cuda.fake.set_peer_access(true).unwrap();
    assert_eq!(set(), 0);
}

#[test]
fn machine_without_devices_says_so() {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(0).unwrap();
    // SAFETY: the library has no initializers.
    let library = unsafe { Library::new(fake.library()) }.unwrap();
    let cuda = Cuda { fake, library };
    assert_eq!(call!(cuda, "cuInit", 0 => u32), NO_DEVICE);
    let mut version = 0;
    assert_eq!(call!(cuda, "cuDriverGetVersion", &raw mut version => *mut i32), 0);
    assert_eq!(version, 13_000);
    let mut text = null_mut::<std::ffi::c_char>().cast_const();
    assert_eq!(call!(cuda, "cuGetErrorName", 4711 => u32, &raw mut text => *mut *const std::ffi::c_char), 1);
    assert!(text.is_null());
}

#[test]
fn copies_on_the_device_run_late_and_addresses_have_a_device() {
    let cuda = start();
    let (mut context, mut stream, mut ordinal) = (0, 0, -1);
    assert_eq!(call!(cuda, "cuDevicePrimaryCtxRetain", &raw mut context => *mut u64, 0 => i32), 0);
    assert_eq!(call!(cuda, "cuCtxPushCurrent_v2", context => u64), 0);
    assert_eq!(call!(cuda, "cuStreamCreate", &raw mut stream => *mut u64, 0 => u32), 0);
    assert!(stream > 2, "smaller numbers have other meanings");
    let bytes = 2 * MIB;
    let (source, target) = (cuda.create(bytes).unwrap(), cuda.create(bytes).unwrap());
    let (source, target) = (cuda.map(source, bytes, READ_WRITE).unwrap(), cuda.map(target, bytes, READ_WRITE).unwrap());
    let attribute = |address: u64, ordinal: &mut i32| call!(cuda, "cuPointerGetAttribute", std::ptr::from_mut(ordinal) => *mut i32, 9 => i32, address => u64);
    assert_eq!((attribute(target + 5, &mut ordinal), ordinal), (0, 0));
    std::thread::scope(|threads| {
        let elsewhere = threads.spawn(|| attribute(target, &mut -1)).join().unwrap();
        assert_eq!(elsewhere, 201, "a thread without a context");
    });
    assert_ne!(attribute(1, &mut ordinal), 0);
    let copy = |to: u64, from: u64, bytes: usize| call!(cuda, "cuMemcpyDtoDAsync_v2", to => u64, from => u64, bytes => usize, stream => u64);
    assert_eq!(copy(target, source, bytes + 1), 1, "beyond the end");
    assert_eq!(call!(cuda, "cuMemsetD8Async", source => u64, 7 => u8, bytes => usize, stream => u64), 0);
    assert_eq!(copy(target, source + 1, bytes - 1), 0);
    let mut last = [0; 2];
    let read = |at: u64, into: &mut [u8]| call!(cuda, "cuMemcpyDtoHAsync_v2", into.as_mut_ptr().cast() => *mut c_void, at => u64, into.len() => usize, stream => u64);
    assert_eq!(read(target + bytes as u64 - 3, &mut last), 0);
    assert_eq!(last, [0; 2], "nothing has run yet");
    assert_eq!(call!(cuda, "cuStreamSynchronize", stream => u64), 0);
    assert_eq!(last, [7; 2]);
}

/// A copy of bytes in the tests below: the value of a byte that a stream has set.
fn byte(cuda: &Cuda, address: u64, stream: u64) -> u8 {
    let mut target = [0];
    assert_eq!((cuda.read(address, &mut target, stream), cuda.wait(stream)), (0, 0));
    target[0]
}

fn fill(cuda: &Cuda, address: u64, value: u8, stream: u64) {
    assert_eq!(call!(cuda, "cuMemsetD8Async", address => u64, value => u8, 1 => usize, stream => u64), 0);
}

fn event(cuda: &Cuda) -> u64 {
    let mut event = 0u64;
    assert_eq!(call!(cuda, "cuEventCreate", &raw mut event => *mut u64, 2 => u32), 0);
    event
}

#[test]
fn events_are_places_in_the_work_of_streams() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let (first, second, observer, event) = (cuda.stream(), cuda.stream(), cuda.stream(), event(&cuda));
    fill(&cuda, address, 1, first);
    assert_eq!(call!(cuda, "cuEventRecord", event => u64, first => u64), 0);
    fill(&cuda, address, 2, first);
    assert_eq!(call!(cuda, "cuEventSynchronize", event => u64), 0);
    assert_eq!(byte(&cuda, address, observer), 1, "the later work has not run");
    assert_eq!(call!(cuda, "cuEventRecord", event => u64, first => u64), 0);
    assert_eq!(call!(cuda, "cuStreamWaitEvent", second => u64, event => u64, 0 => u32), 0);
    assert_eq!(byte(&cuda, address, second), 2, "the other stream has run up to the event");
    assert_eq!(call!(cuda, "cuEventDestroy_v2", event => u64), 0);
    assert_eq!(call!(cuda, "cuEventSynchronize", event => u64), 400);
}

#[test]
fn default_stream_and_blocking_streams_wait_for_each_other() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let (observer, mut blocking) = (cuda.stream(), 0u64);
    assert_eq!(call!(cuda, "cuStreamCreate", &raw mut blocking => *mut u64, 0 => u32), 0);
    fill(&cuda, address, 1, blocking);
    fill(&cuda, address + 1, 1, observer);
    assert_eq!(cuda.wait(0), 0);
    assert_eq!(byte(&cuda, address, observer), 1);
    fill(&cuda, address, 2, 0);
    assert_eq!(cuda.wait(blocking), 0);
    assert_eq!(byte(&cuda, address, observer), 2);
    fill(&cuda, address, 3, 0);
    assert_eq!(byte(&cuda, address, observer), 2, "a stream that does not block runs beside it");
}

#[test]
fn stream_that_waits_for_an_event_of_a_capture_is_captured() {
    let cuda = start();
    let handle = cuda.create(2 * MIB).unwrap();
    let address = cuda.map(handle, 2 * MIB, READ_WRITE).unwrap();
    let (captured, other, event, mut mode) = (cuda.stream(), cuda.stream(), event(&cuda), 2);
    assert_eq!(call!(cuda, "cuThreadExchangeStreamCaptureMode", &raw mut mode => *mut i32), 0);
    let status = |stream: u64| {
        let mut status = -1;
        assert_eq!(call!(cuda, "cuStreamIsCapturing", stream => u64, &raw mut status => *mut i32), 0);
        status
    };
    let end = |stream: u64| {
        let mut graph = 0u64;
        call!(cuda, "cuStreamEndCapture", stream => u64, &raw mut graph => *mut u64)
    };
    let record = |stream: u64| call!(cuda, "cuEventRecord", event => u64, stream => u64);
    let wait = |stream: u64| call!(cuda, "cuStreamWaitEvent", stream => u64, event => u64, 0 => u32);
    for is_joined in [false, true] {
        assert_eq!(call!(cuda, "cuStreamBeginCapture_v2", captured => u64, 0 => i32), 0);
        assert_eq!((record(captured), wait(other), status(other)), (0, 0, 1));
        fill(&cuda, address, 7, other);
        assert_eq!(end(other), 903, "the first stream ends it");
        if is_joined {
            assert_eq!((record(other), wait(captured)), (0, 0));
        }
        assert_eq!(end(captured), if is_joined { 0 } else { CAPTURE_UNJOINED });
        assert_eq!(status(other), 0);
    }
    assert_ne!(byte(&cuda, address, other), 7, "captured work does not run");
}

#[test]
fn capture_prohibits_changes_of_memory_to_threads_that_are_not_relaxed() {
    let cuda = start();
    let captured = cuda.stream();
    assert_eq!(call!(cuda, "cuStreamBeginCapture_v2", captured => u64, 0 => i32), 0);
    assert_eq!(cuda.create(2 * MIB), Err(CAPTURE_UNSUPPORTED));
    let mut mode = 2;
    assert_eq!(call!(cuda, "cuThreadExchangeStreamCaptureMode", &raw mut mode => *mut i32), 0);
    assert!(cuda.create(2 * MIB).is_ok());
}
