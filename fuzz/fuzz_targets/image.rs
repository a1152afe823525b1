//! Image files: a non-empty image or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = cotensor_preprocess::decode_image(bytes) {
        assert!(image.width() > 0 && image.height() > 0);
    }
});
