//! Modules in one tensor: manifests whose storages lie inside it, or an error. Tensor files: entries whose bytes are read, or an
//! error; never more than the file has.
#![no_main]

use cotensor_formats::{Format, ModuleManifest, TensorReader};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok((manifest, data)) = ModuleManifest::parse(bytes) {
        let end = manifest.storages.last().map_or(0, |(offset, length)| offset + length);
        assert!(end as usize <= bytes.len().saturating_sub(data), "storages lie inside");
    }
    for format in [Format::Npy, Format::Safetensors] {
        let Ok(mut reader) = TensorReader::open(bytes, format, None) else { continue };
        for index in 0..reader.entries().len() {
            let size = reader.entries()[index].size_bytes().expect("checked when it was opened");
            // What the file does not have need not be tried: nobody reserves more than a store has, either.
            if size > bytes.len() || reader.read(index, &mut vec![0; size]).is_err() {
                break;
            }
        }
    }
});
