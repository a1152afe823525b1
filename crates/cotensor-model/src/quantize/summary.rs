//! What is known of the quantized weights of a graph, for users of the model.

use super::report::{QuantizeReport, bits_per_weight};
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
    /// The relative error of the outputs on held-out samples, for equal inputs.
    pub output_error: Option<f64>,
    /// For the next tokens of a decoder: the mean Kullback-Leibler divergence, in nats.
    pub divergence: Option<f64>,
    /// For the next tokens of a decoder: the share of equal first choices.
    pub top1: Option<f64>,
    /// The samples that were held out.
    pub held_out: usize,
}

impl QuantizedWeights {
    /// Those of the graph `file`, relative to the model's folder, whose weights have `bytes` bytes in the store for an engine that
    /// computes with `precision`. `None` for a graph without matrices of codes.
    pub(crate) fn of(report: &QuantizeReport, file: &Path, bytes: u64, precision: DType) -> Option<Self> {
        let graph = report.graph(file).filter(|graph| !graph.matrices.is_empty())?;
        let (mut elements, mut error) = (0.0, 0.0);
        for matrix in &graph.matrices {
            let count = matrix.rows as f64 * matrix.columns as f64;
            elements += count;
            error += count * matrix.relative_error.powi(2);
        }
        let is_wide = precision == DType::F32;
        let kept: u64 = graph.kept.iter().map(|kept| kept.bytes << u32::from(is_wide && kept.is_float16)).sum();
        (elements > 0.0).then(|| Self {
            stored_bits: bits_per_weight(std::slice::from_ref(graph)),
            run_bits: bytes.saturating_sub(kept) as f64 * 8.0 / elements,
            relative_error: (error / elements).sqrt(),
            output_error: graph.output_error,
            divergence: graph.divergence,
            top1: graph.top1,
            held_out: report.held_out,
        })
    }
}
