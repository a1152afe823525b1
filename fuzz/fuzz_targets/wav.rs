//! Audio files: finite samples or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(audio) = cotensor_preprocess::decode_audio(bytes) {
        assert!(audio.samples.iter().all(|sample| sample.is_finite()) && !audio.samples.is_empty());
    }
});
