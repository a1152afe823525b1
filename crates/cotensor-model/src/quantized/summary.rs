//! What is known of the quantized weights of a graph, for users of the model.

use super::origin::WeightsOrigin;
use super::report::{MatrixReport, OutputErrors, QuantizeReport, bits_per_weight};
use cotensor_core::DType;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The quantized weights of a graph. What was not measured is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedWeights {
    /// The mean bits of a weight in the file, with scales, without the weights that stayed as they were.
    pub stored_bits: f64,
    /// In the store, in the form that the engine reads. Tensors of less than 1 KiB are not shared, and do not count.
    pub run_bits: f64,
    /// The relative error of all these weights in the L2 norm, as the root of the mean square.
    pub relative_error: f64,
    /// The relative error of the results of their products, for the inputs of the calibration, as the root of the mean square.
    #[serde(default, with = "super::measured")]
    pub layer_error: Option<f64>,
    /// Of the outputs.
    #[serde(flatten)]
    pub errors: OutputErrors,
    /// Whether the weights are trained; `None` if they do not say. See [`WeightsOrigin`].
    #[serde(default)]
    pub weights: Option<WeightsOrigin>,
    /// The samples that were held out.
    pub held_out: usize,
}

impl QuantizedWeights {
    /// Those of the graph `file`, relative to the model's folder, whose weights have `bytes` bytes in the store for an engine that
    /// computes with `precision`. `None` for a graph without matrices of codes.
    pub(crate) fn of(report: &QuantizeReport, file: &Path, bytes: u64, precision: DType) -> Option<Self> {
        let graph = report.graph(file).filter(|graph| !graph.matrices.is_empty())?;
        let elements = MatrixReport::elements;
        let mean = |error: &dyn Fn(&MatrixReport) -> Option<f64>| {
            let known = graph.matrices.iter().filter_map(|matrix| Some((elements(matrix), error(matrix)?)));
            let (count, sum) = known
                .fold((0.0, 0.0), |(count, sum), (elements, error)| (count + elements, sum + elements * error.powi(2)));
            (count > 0.0).then(|| (sum / count).sqrt())
        };
        let all: f64 = graph.matrices.iter().map(elements).sum();
        let is_wide = precision == DType::F32;
        let kept = graph.kept.iter().map(|kept| kept.bytes.saturating_mul(1 + u64::from(is_wide && kept.is_float16)));
        let kept = kept.fold(0u64, u64::saturating_add);
        Some(Self {
            stored_bits: bits_per_weight(std::slice::from_ref(graph)),
            run_bits: bytes.saturating_sub(kept) as f64 * 8.0 / all,
            relative_error: mean(&|matrix| Some(matrix.relative_error))?,
            layer_error: mean(&|matrix| matrix.output_error),
            errors: graph.errors,
            weights: graph.weights,
            held_out: report.held_out,
        })
    }
}
