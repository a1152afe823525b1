//! ONNX files: a graph or an error. What loading makes of the weights for each engine fits their shapes.
#![no_main]

use cotensor_core::{Error, Result};
use cotensor_graph::{Graph, GraphFiles};
use cotensor_model::engine::{Capabilities, Engine, RtenEngine};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static RTEN: LazyLock<Capabilities> = LazyLock::new(|| RtenEngine::new(Some(1)).capabilities());
const NAME: &str = "fuzzed.onnx";
/// The most bytes of a weight that are made.
const BYTES_MAX: usize = 1 << 20;

/// A file without external data.
struct OneFile<'b>(&'b [u8]);

impl GraphFiles for OneFile<'_> {
    fn own(&self) -> Result<PathBuf> {
        Ok(NAME.into())
    }

    fn external(&mut self, location: &str) -> Result<(PathBuf, u64)> {
        Err(Error::not_found(location))
    }

    fn read(&self, _: &Path, offset: u64, target: &mut [u8]) -> Result<()> {
        target.copy_from_slice(&self.0[offset as usize..][..target.len()]);
        Ok(())
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let file = std::io::Cursor::new(bytes);
    let Ok(graph) = Graph::read(file, Path::new(NAME), &mut OneFile(bytes)) else { return };
    // onnxruntime has zero points and products of integers, and keeps float16.
    let other = Capabilities { widens_floats: false, has_zero_points: true, multiplies_int8: true, ..*RTEN };
    for capabilities in [*RTEN, other] {
        let mut graph = graph.clone();
        capabilities.fit(&mut graph);
        for weight in graph.weights().iter().filter(|weight| weight.size_bytes() <= BYTES_MAX) {
            let source = &weight.source;
            let stored = &bytes[source.offset as usize..][..source.length as usize];
            weight.fill(stored, &mut vec![0; weight.size_bytes()]);
        }
    }
});
