//! Images in a text: the decoder reads their features in place of the embeddings of a token that stands for an image.

use super::run::Run;
use crate::model::{Model, StageSource};
use crate::stage::Stage;
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{Error, Result};
use cotensor_pipeline::{image_token, merged, token_text};
use cotensor_preprocess::family::Source;
use cotensor_store::CopyReason;
use std::cell::Cell;
use std::collections::HashMap;

/// The image of a text, if it has one, and what embeds the text's tokens.
pub(super) struct Images {
    /// The token and the features, `[1, rows, width]`.
    image: Option<(i64, Value)>,
    copied_bytes: Cell<usize>,
}

/// The text of the token that stands for an image.
///
/// # Errors
/// As [`image_token`].
pub(super) fn image_token_text(model: &Model) -> Result<Option<String>> {
    let Some(token) = image_token(&model.model_config())? else { return Ok(None) };
    Ok(Some(token_text(model.text()?, token)))
}

/// The features of the image, `[1, rows, width]`, of a stage that ran.
fn features<'v>(model: &Model, values: &'v HashMap<Source, Value>) -> Option<&'v Value> {
    let images = model.family().decoder.as_ref()?.images.as_ref()?;
    values.get(&images.features)
}

/// The tokens of a prompt, with as many image tokens as the image's features have rows.
///
/// # Errors
/// As [`cotensor_pipeline::expanded`].
pub(super) fn expanded(run: &Run<'_>, ids: &[i64]) -> Result<Vec<i64>> {
    match (image_token(&run.model.model_config())?, features(run.model, &run.values)) {
        (Some(token), Some(features)) => cotensor_pipeline::expanded(ids, token, features.shape(), run.model.text()?),
        _ => Ok(ids.to_vec()),
    }
}

impl Images {
    /// The image of a model's run, by the values of its stages.
    ///
    /// # Errors
    /// As [`image_token`].
    pub(super) fn of(model: &Model, values: &HashMap<Source, Value>) -> Result<Self> {
        let image = image_token(&model.model_config())?.zip(features(model, values).cloned());
        Ok(Self { image, copied_bytes: Cell::new(0) })
    }

    /// The embeddings of tokens, `[1, tokens, width]`: those of the graph, and for image tokens the features, in order.
    ///
    /// # Errors
    /// `Corrupt` when features and embeddings do not fit; as [`run_alone`](crate::engine::LoadedGraph::run_alone).
    pub(super) fn embed(&self, stage: &Stage, ids: &[i64]) -> Result<Value> {
        let image = self.image.as_ref().filter(|(token, _)| ids.contains(token));
        let Some((token, features)) = image else { return embeddings(stage, ids) };
        let words: Vec<i64> = ids.iter().copied().filter(|id| id != token).collect();
        let embedded = embeddings(stage, &words)?;
        let width = embedded.shape().last().copied().unwrap_or_default();
        let rows = ids.len() - words.len();
        if features.shape() != [1, rows, width] || embedded.shape() != [1, words.len(), width] {
            let message = format!(
                "{rows} image tokens and embeddings of width {width}; the image has features {:?}",
                features.shape()
            );
            return Err(Error::corrupt(message).in_field(&stage.role));
        }
        let (of_words, of_image) = (embedded.to_f32()?, features.to_f32()?);
        let all = merged(ids, *token, &of_words, &of_image, width);
        self.copied_bytes.set(self.copied_bytes.get() + all.len() * size_of::<f32>());
        Ok(Array::f32([1, ids.len(), width], all)?.into())
    }

    /// Counts the bytes that [`embed`](Self::embed) copied.
    pub(super) fn record_copies(&self, model: &Model) {
        if let (StageSource::Shared(loader), bytes @ 1..) = (model.source(), self.copied_bytes.get()) {
            loader.store().record_copy("prompt with an image", CopyReason::Preprocessed, bytes);
        }
    }
}

/// The embeddings of tokens, `[1, tokens, width]`.
fn embeddings(stage: &Stage, ids: &[i64]) -> Result<Value> {
    let ([input], [output, ..]) = (stage.graph().inputs(), stage.graph().outputs()) else {
        return Err(Error::unsupported("a graph of embeddings has one input").in_field(&stage.role));
    };
    let shape = [1, ids.len()];
    let ids = TensorRef::i64(&shape, ids)?;
    let mut embeds = stage.graph().run_alone(&[(&input.name, ids)], &[&output.name])?;
    embeds.pop().map(Value::from).ok_or_else(|| Error::corrupt("no embeddings").in_field(&stage.role))
}
