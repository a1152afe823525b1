//! What is known of the quantized weights of a graph, for users of the model.

use super::origin::WeightsOrigin;
use super::report::{OutputErrors, QuantizeReport};
use super::sums::CodedSums;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The quantized weights of a graph, or of the part of it that a stage runs. What was not measured is `None`: all errors of a graph that
/// another program quantized, whose tables do not count either. Matrices whose codes have less than 1 KiB do not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedWeights {
    /// The mean bits of a weight in the file, with scales, without the weights that stayed as they were.
    pub stored_bits: f64,
    /// In the store, in the form that the engine reads. Tensors of less than 1 KiB are not shared, and do not count.
    pub run_bits: f64,
    /// The relative error of all these weights in the L2 norm, as the root of the mean square.
    #[serde(default, with = "super::measured")]
    pub relative_error: Option<f64>,
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
    /// Those of a stage with these matrices. `report` is that of its model, in whose folder the graph is `file`.
    pub(crate) fn of(codes: &CodedSums, report: Option<&QuantizeReport>, file: &Path) -> Self {
        let of_graph = report.and_then(|report| Some((report.held_out, report.graph(file)?)));
        let (held_out, graph) = of_graph.unzip();
        let [relative_error, layer_error] = codes.errors();
        Self {
            stored_bits: codes.stored_bits(),
            run_bits: codes.run_bits(),
            relative_error,
            layer_error,
            errors: graph.map(|graph| graph.errors).unwrap_or_default(),
            weights: graph.and_then(|graph| graph.weights),
            held_out: held_out.unwrap_or_default(),
        }
    }
}
