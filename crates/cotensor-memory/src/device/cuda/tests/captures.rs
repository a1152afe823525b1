//! Copies while another library of the process captures a stream into a graph.

use super::{Library, started};
use cotensor_core::{ErrorKind, Memory};
use cotensor_fake_cuda::CAPTURE_UNJOINED;

#[test]
fn capture_of_another_library_is_not_disturbed() {
    let (fake, driver, memory) = started();
    let library = Library::open(&driver);
    let captured = library.begin_capture();
    let segment = memory.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let mut bytes = [0; 100];
    segment.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100]);
    drop(segment);
    assert_eq!(library.end_capture(captured), 0);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

/// Lets `stream` wait for the work of `other`, as the owner of an array does for its consumer.
fn follow(library: &Library, stream: usize, other: usize) {
    let (loaded, mut event) = (library.library(), 0);
    // SAFETY: `event` outlives the calls; the types are those of `cuda.h`.
    let codes = unsafe {
        let wait = loaded.get::<unsafe extern "C" fn(usize, usize, u32) -> u32>("cuStreamWaitEvent").unwrap();
        let functions = &library.driver.functions;
        let made = (functions.create_event)(&raw mut event, 0);
        [made, (functions.record_event)(event, other), wait(stream, event, 0), (functions.destroy_event)(event)]
    };
    assert_eq!(codes, [0; 4]);
}

#[test]
fn array_of_a_captured_stream_is_an_error_and_other_copies_go_on() {
    let (_fake, driver, memory) = started();
    let library = Library::open(&driver);
    let source = memory.reserve(100).unwrap();
    let address = source.device_address().unwrap();
    let captured = library.begin_capture();
    // SAFETY: the capture has begun in this stream.
    let error = unsafe { memory.wait_for(captured) }.unwrap_err();
    assert!(error.to_string().contains("captured into a CUDA graph"), "{error}");
    assert_eq!((error.kind(), library.end_capture(captured)), (ErrorKind::Conflict, 0), "the capture is not disturbed");

    let captured = library.begin_capture();
    let stream = memory.copy_stream().unwrap();
    follow(&library, stream.handle(), captured);
    // SAFETY: the segment has these bytes.
    let bytes = unsafe { memory.bytes_at(address, 100) }.after(stream);
    let mut target = memory.reserve(100).unwrap();
    let errors = [bytes.copy_to(&mut *target, 0), bytes.read(0, &mut [0; 100]), bytes.wait()];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    drop(bytes);
    // The stream is a part of the capture. No other copy gets it.
    let made = memory.copy_of(&[7; 100]).unwrap().freeze().unwrap();
    let mut read = [0; 100];
    made.read_at(0, &mut read).unwrap();
    assert_eq!(read, [7; 100]);
    assert_eq!(library.end_capture(captured), CAPTURE_UNJOINED);
    drop((source, target));
}

#[test]
fn copy_follows_the_work_that_its_stream_waits_for() {
    let (_fake, driver, memory) = started();
    let library = Library::open(&driver);
    let source = memory.reserve(100).unwrap();
    let address = source.device_address().unwrap();
    library.fill(address, 7, 100);
    let [first, second] = [(); 2].map(|()| memory.copy_stream().unwrap());
    assert_ne!(first.handle(), second.handle(), "each copy has a stream of its own");
    follow(&library, first.handle(), library.stream);
    let mut target = memory.reserve(100).unwrap();
    // SAFETY: the segment has these bytes.
    let [early, late] = [second, first].map(|stream| unsafe { memory.bytes_at(address, 100) }.after(stream));
    let copied = [early, late].map(|bytes| {
        let mut read = [0; 1];
        bytes.copy_to(&mut *target, 0).unwrap();
        bytes.read(99, &mut read).unwrap();
        read[0]
    });
    assert_eq!(copied, [0, 7], "only the stream that waits for the work does");
}
