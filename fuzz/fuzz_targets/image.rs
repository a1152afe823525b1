//! Images.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = cotensor::model::preprocess::decode_image(bytes) {
        assert!(image.width() > 0 && image.height() > 0);
    }
});
