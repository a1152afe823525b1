//! Tables of packs: entries inside the file, aligned and disjoint, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = cotensor_memory::parse_pack_table(bytes) {
        for pair in entries.windows(2) {
            assert!(pair[0].range.end <= pair[1].range.start);
        }
        assert!(entries.iter().all(|entry| entry.range.end <= bytes.len() && entry.range.start % 64 == 0));
    }
});
