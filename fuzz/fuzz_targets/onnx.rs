//! ONNX files: a graph or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let file = std::io::Cursor::new(bytes);
    let _ = cotensor_model::graph::read_graph(file, std::path::Path::new("fuzzed.onnx"));
});
