//! Pipeline files: a pipeline with users, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(pipeline) = cotensor_model::pipeline::Pipeline::parse(text) {
        assert!(!pipeline.users.is_empty());
    }
});
