//! Writes a copy of a model whose weights have few bits, as files that onnxruntime and Cotensor open.
//!
//! The steps of `job.rs`: `calibrate.rs` records samples, `plan.rs` chooses widths, `graph.rs` fits codes and writes the nodes of
//! `low_bit` of cotensor-graph, and `measure.rs` compares the outputs.

mod calibrate;
mod closeness;
mod copy;
mod files;
mod folder;
mod graph;
mod import;
mod job;
mod measure;
mod options;
mod plan;
mod sensitivity;
mod watch;
mod work;
mod write;
mod writer;

pub use crate::quantized::{
    GraphReport, Kept, MatrixReport, MixedReport, OutputErrors, QuantizeReport, QuantizedWeights, REPORT_FILE,
    WeightsOrigin, not_finite,
};
pub use copy::quantized_copy;
pub use folder::quantize_folder;
pub use graph::quantize_graph;
pub use import::{ImportOptions, import_folder};
pub use options::{Activations, QuantizeOptions, check_scheme};
pub use watch::Progress;
pub use work::work_folder;
