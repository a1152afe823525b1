//! Events of a server for its supervisor, one per line: recorded or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let messages: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(64).collect();
    cotensor_daemon::fuzzing::apply_events(&messages);
});
