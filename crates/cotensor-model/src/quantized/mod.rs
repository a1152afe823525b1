//! What is known of the quantized weights of a model: its report, which `quantize` writes, and a summary for users of the model.

pub(crate) mod measured;
mod origin;
mod report;
mod summary;
mod sums;

pub use measured::not_finite;
pub use origin::WeightsOrigin;
pub(crate) use origin::{direction, dot, likeness};
pub(crate) use report::bits_per_weight;
pub use report::{GraphReport, Kept, MatrixReport, MixedReport, OutputErrors, QuantizeReport, REPORT_FILE};
pub use summary::QuantizedWeights;
pub(crate) use sums::CodedSums;
