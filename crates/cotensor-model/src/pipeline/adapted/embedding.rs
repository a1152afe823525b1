//! Shared tensors that an encoder made, as inputs of other models.

use super::encode::{encoder_of, text_parts};
use super::take::adapter_to;
use crate::model::Model;
use crate::pipeline::encoded::{Encoded, Foreign, RowParts};
use crate::pipeline::inputs::Inputs;
use crate::tensor::Value;
use cotensor_core::{Error, ErrorKind, Kind, Result};
use cotensor_preprocess::family::{Medium, StageDef};
use cotensor_sharing::SharedTensor;

/// A shared tensor that an encoder made.
#[derive(Clone, Debug)]
pub struct SharedEmbedding {
    tensor: SharedTensor,
    parts: RowParts,
    /// The text of the input, if it had one.
    text: Option<String>,
}

impl From<SharedTensor> for SharedEmbedding {
    /// A tensor whose input is not known. An adapter that aligns tokens cannot map it.
    fn from(tensor: SharedTensor) -> Self {
        Self { tensor, parts: RowParts::Unknown, text: None }
    }
}

impl SharedEmbedding {
    /// The tensor that `model` made of `inputs`.
    pub(crate) fn made_by(model: &Model, inputs: &Inputs, tensor: SharedTensor) -> Self {
        let parts = match tensor.kind() {
            // Patches and frames are aligned by the adapter alone.
            Kind::TextEmbedding => text_parts(model, inputs, tensor.shape().len() == 2),
            _ => Ok(RowParts::Unknown),
        };
        Self { tensor, parts: parts.unwrap_or(RowParts::Unknown), text: inputs.text().ok().map(str::to_owned) }
    }

    /// The tensor.
    pub fn tensor(&self) -> &SharedTensor {
        &self.tensor
    }
}

impl Inputs {
    /// Adds a shared tensor, which replaces the output of the stage of `model` with the same space, or of the stage to whose
    /// space the store has an adapter. That stage is neither loaded nor run. The tensor of a text brings its text, if that is
    /// known. `holder` is the name of the model's leases.
    ///
    /// # Errors
    /// `Invalid` when no stage of the model has the tensor's space and there is no adapter: the message names both spaces, or
    /// the stages of a model that takes no such kind. `Invalid` for a text other than the tensor's. `Conflict` for a second
    /// tensor for one stage, or as [`SharedTensor::lease_for`].
    pub fn with_embedding(mut self, embedding: &SharedEmbedding, model: &Model, holder: &str) -> Result<Self> {
        let tensor = &embedding.tensor;
        let space = tensor
            .space()
            .ok_or_else(|| Error::invalid(format!("{} has no space: no encoder of a model made it", tensor.name())))?;
        let value = Value::from(tensor.lease_for(holder)?);
        let encoded = Encoded { value, parts: embedding.parts.clone(), space };
        let medium = taken_as(model, tensor.kind(), &encoded, holder)?;
        if self.foreign().iter().any(|known| known.medium == medium) {
            let message = format!("two tensors replace the {} of {}", medium.name(), model.name());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        if let Some(text) = embedding.text.as_ref().filter(|_| medium == Medium::Text) {
            match self.text() {
                Ok(own) if own != text => {
                    return Err(Error::invalid(format!("{} was made of another text", tensor.name())).in_field("text"));
                }
                Ok(_) => {}
                Err(_) => self = self.with_text(text.clone()),
            }
        }
        Ok(self.with_foreign(Foreign { medium, encoded, adapter: None }))
    }
}

/// The input that `model` does not read because it has the tensor: that of the stage with the same space, else that of the
/// first stage to which an adapter leads.
fn taken_as(model: &Model, kind: Kind, encoded: &Encoded, holder: &str) -> Result<Medium> {
    let candidates: Vec<(Medium, &StageDef)> = media(kind)
        .iter()
        .filter_map(|&medium| Some((medium, encoder_of(model, medium).ok()?)))
        // One tensor cannot replace several outputs.
        .filter(|(_, def)| def.outputs.len() == 1)
        .collect();
    for (medium, def) in &candidates {
        if model.space(&def.role)? == encoded.space {
            return Ok(*medium);
        }
    }
    let holder = model.store()?.holder(holder);
    let mut refused = None;
    for (medium, def) in &candidates {
        match adapter_to(model, def, &encoded.space, None, &holder) {
            Ok(_) => return Ok(*medium),
            Err(error) => refused.get_or_insert(error),
        };
    }
    Err(refused.unwrap_or_else(|| {
        let stages: Vec<String> =
            model.family().stages.iter().map(|stage| format!("{} ({})", stage.role, stage.kind)).collect();
        let stages = if stages.is_empty() { "none yet".to_owned() } else { stages.join(", ") };
        let message =
            format!("{} takes no tensor of kind {kind} (space {}); its stages: {stages}", model.name(), encoded.space);
        Error::invalid(message)
    }))
}

/// The inputs of encoders that make tensors of a kind.
fn media(kind: Kind) -> &'static [Medium] {
    match kind {
        Kind::TextEmbedding => &[Medium::Text],
        Kind::VisionEmbedding => &[Medium::Image],
        Kind::AudioEmbedding => &[Medium::Audio],
        Kind::VisionTextJoint => &[Medium::Image, Medium::Text],
        Kind::AudioTextJoint => &[Medium::Audio, Medium::Text],
        _ => &[],
    }
}
