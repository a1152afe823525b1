//! Module manifests: storages inside the tensor, or an error. Tensor files: readable entries or an error, never beyond the end of
//! the file.
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
            let size = reader.entries()[index].size_bytes().expect("checked by open");
            // Entries larger than the file are skipped: a store would refuse the reservation.
            if size > bytes.len() || reader.read(index, &mut vec![0; size]).is_err() {
                break;
            }
        }
    }
});
