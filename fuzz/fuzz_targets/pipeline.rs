//! Pipeline files.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(pipeline) = cotensor::Pipeline::parse(text) {
        assert!(!pipeline.users.is_empty());
    }
});
