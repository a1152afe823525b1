//! Weights in the layout of onnxruntime's kernels, in files that all processes map.
//!
//! onnxruntime writes an optimized graph with its prepacked weights when a session is built, and maps the file when it
//! opens that graph again. The files depend on the graph, the weights, the library's version and the processor.

use super::library::Library;
use cotensor_core::{ContentHash, Hasher};

/// The graph in a folder of derived files.
pub(super) const MODEL: &str = "model.onnx";
/// Its weights.
pub(super) const DATA: &str = "model.data";
/// The weights from which these files are made, while they are made.
pub(super) const SOURCE: &str = "source.data";

/// The kind of kernels in stage keys and reports.
pub(super) const VARIANT: &str = "prepacked";

/// The key of the files for a graph with this fingerprint; `None` when the processor is not known.
pub(super) fn key(library: &Library, fingerprint: &ContentHash) -> Option<ContentHash> {
    let mut hasher = Hasher::new("cotensor prepacked onnxruntime v2");
    hasher.field(fingerprint.as_bytes()).field(library.version.as_bytes());
    for fact in processor()? {
        hasher.field(fact.as_bytes());
    }
    Some(hasher.finish())
}

/// The model and the instruction sets of the first processor, on which the layouts depend.
fn processor() -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let first = text.split("\n\n").next()?;
    let names = ["vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part"];
    let wanted = |line: &&str| line.split_once(':').is_some_and(|(name, _)| names.contains(&name.trim()));
    let facts: Vec<String> = first.lines().filter(wanted).map(str::to_owned).collect();
    (!facts.is_empty()).then_some(facts)
}
