//! Writes a copy of a model whose weights have few bits, as files that onnxruntime and Cotensor open.

mod calibrate;
mod folder;
mod graph;
mod options;
mod report;

pub use calibrate::{Calibration, SAMPLES_MIN};
pub use folder::{quantize_folder, work_folder};
pub use graph::quantize_graph;
pub use options::{Activations, QuantizeOptions};
pub use report::{GraphReport, Kept, MatrixReport, QuantizeReport, REPORT_FILE};
