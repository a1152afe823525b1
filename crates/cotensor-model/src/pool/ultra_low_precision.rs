//! Weights of few bits under the names of the documents: a model is quantized before it is needed.

use super::devices::HardwarePreferences;
use super::precision::Quantizing;
use super::resource_pool::ResourcePool;
use crate::model::Model;
use crate::pipeline::Samples;
use crate::quantize::QuantizeReport;
use cotensor_core::Result;
use cotensor_preprocess::position_limit;
use std::path::PathBuf;
use std::sync::Arc;

/// What [`ResourcePool::setup_ultra_low_precision`] is asked for.
#[derive(Clone)]
pub struct UltraLowPrecisionOptions {
    /// Bits of a weight: 2, 3, 4 or 8.
    pub precision_bits: u32,
    /// Whether each matrix has a width of its own.
    pub mixed_precision: bool,
    /// Whether a decoder keeps keys and values. Engines always keep them, in the type of the graph.
    pub enable_kv_cache: bool,
    /// Whether longer contexts are wanted. The positions of a model set its limit.
    pub extended_context: bool,
    /// As [`HardwarePreferences::calibration`].
    pub calibration: Option<Arc<Samples>>,
    /// As [`HardwarePreferences::folder`].
    pub folder: Option<PathBuf>,
}

/// A model with weights of few bits.
#[derive(Clone, Debug)]
pub struct UltraLowPrecision {
    /// The folder of the quantized model, or of the model with a variant of these bits.
    pub folder: PathBuf,
    /// The errors that were measured; `None` for a variant that another program quantized.
    pub report: Option<QuantizeReport>,
    /// The most tokens of a text; `None` for a model whose positions set no limit.
    pub context_tokens: Option<usize>,
    /// What was asked for and is not so, or is so without being asked for.
    pub notices: Vec<String>,
}

impl ResourcePool {
    /// Quantizes a model, so that [`get_model`](ResourcePool::get_model) with the same precision opens it at once. Does nothing for one that
    /// has been quantized so, or has a variant of these bits.
    ///
    /// # Errors
    /// As [`get_model`](ResourcePool::get_model).
    pub fn setup_ultra_low_precision(
        &self,
        model_name: &str,
        model_type: &str,
        options: &UltraLowPrecisionOptions,
        quantizing: Quantizing<'_>,
    ) -> Result<UltraLowPrecision> {
        let preferences = HardwarePreferences {
            precision: Some(options.precision_bits.to_string()),
            mixed_precision: options.mixed_precision,
            calibration: options.calibration.clone(),
            folder: options.folder.clone(),
            ..HardwarePreferences::default()
        };
        let pooled = self.get_model_with(model_type, model_name, &preferences, quantizing)?;
        let model = pooled.model();
        let context_tokens = position_limit(model.config())?;
        Ok(UltraLowPrecision {
            folder: model.folder().to_path_buf(),
            report: model.quantization()?.cloned(),
            context_tokens,
            notices: notices(model, options, context_tokens),
        })
    }
}

fn notices(model: &Model, options: &UltraLowPrecisionOptions, context_tokens: Option<usize>) -> Vec<String> {
    let title = &model.family().title;
    let mut notices = Vec::new();
    match (model.family().decoder.is_some(), options.enable_kv_cache) {
        (true, true) => {
            notices.push("the cache of keys and values has the type of the graph: it is not quantized".to_owned())
        }
        (true, false) => notices.push("the cache of keys and values is on: engines always keep it".to_owned()),
        (false, true) => notices.push(format!("{title} has no cache of keys and values")),
        (false, false) => {}
    }
    if options.extended_context {
        let limit = context_tokens.map_or_else(|| "its positions".to_owned(), |tokens| format!("{tokens} tokens"));
        notices.push(format!("the context of {title} stays {limit}: fewer bits leave memory, not positions"));
    }
    notices
}
