//! Writes a copy of a model whose weights have few bits, as files that onnxruntime and Cotensor open.

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
mod origin;
mod plan;
mod report;
mod sensitivity;
mod summary;
mod watch;
mod write;
mod writer;

pub use copy::quantized_copy;
pub use folder::{quantize_folder, work_folder};
pub use graph::quantize_graph;
pub use import::{ImportOptions, import_folder};
pub use options::{Activations, QuantizeOptions, check_scheme};
pub use origin::WeightsOrigin;
pub use report::{GraphReport, Kept, MatrixReport, MixedReport, OutputErrors, QuantizeReport, REPORT_FILE};
pub use summary::QuantizedWeights;
pub use watch::Progress;
