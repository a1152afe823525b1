//! The rows that a single stage makes of an input, for programs that read tensors of stages rather than answers.

use crate::model::Model;
use crate::pipeline::encoded::{Encoded, RowParts};
use crate::pipeline::inputs::Inputs;
use crate::pipeline::run::Run;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{Medium, StageDef};
use cotensor_store::Holder;

/// The first stage of the model that reads `medium`.
///
/// # Errors
/// `Unsupported` when no stage does.
pub fn encoder_of(model: &Model, medium: Medium) -> Result<&'static StageDef> {
    model.family().stages.iter().find(|stage| stage.reads(medium)).ok_or_else(|| {
        Error::unsupported(format!("{} has no stage that reads {}", model.family().title, medium.name()))
            .in_file(model.folder())
    })
}

/// Runs the first stage of `model` that reads `medium`, unless the store has its output.
///
/// # Errors
/// As [`encoder_of`]; `Invalid` for a private copy of a model; the errors of preprocessing, loading and running.
pub fn encode(model: &Model, medium: Medium, inputs: &Inputs, holder: &Holder) -> Result<Encoded> {
    let def = encoder_of(model, medium)?;
    let mut run = Run::new(model, holder);
    let value = run.encode(def, inputs, |run, _| {
        if medium == Medium::Text {
            let batch = run.tokenizer()?.encode(&[inputs.text()?])?;
            run.set_texts(&batch);
        }
        Ok(())
    })?;
    let parts = match medium {
        Medium::Text => text_parts(model, inputs, value.shape().len() == 2)?,
        Medium::Image => image_parts(model, inputs)?,
        Medium::Audio => RowParts::Audio,
    };
    Ok(Encoded { value, parts, space: model.space(&def.role)? })
}

/// The size of the image as `model` reads it; unknown without an image.
///
/// # Errors
/// `Invalid` for an image that `model` cannot read.
pub(super) fn image_parts(model: &Model, inputs: &Inputs) -> Result<RowParts> {
    if !inputs.has_image() {
        return Ok(RowParts::Unknown);
    }
    let (height, width) = model.image()?.size(inputs.image_size()?)?;
    Ok(RowParts::Image(height, width))
}

/// The bytes of the text that each token of `model` covers, or that one row for the whole text covers if `pooled`.
///
/// # Errors
/// As [`TextProcessor::encode`](cotensor_preprocess::TextProcessor::encode); `Invalid` without a text.
pub(crate) fn text_parts(model: &Model, inputs: &Inputs, pooled: bool) -> Result<RowParts> {
    let text = inputs.text()?;
    let whole = 0..text.len();
    Ok(RowParts::Tokens(if pooled { vec![whole] } else { model.text()?.spans(text)? }))
}
