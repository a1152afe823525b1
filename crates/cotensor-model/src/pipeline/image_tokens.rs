//! Images in a text: the decoder reads their features in place of the embeddings of a token that stands for an image.

use super::run::Run;
use crate::model::{Model, StageSource};
use crate::stage::Stage;
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{Error, Result};
use cotensor_store::CopyReason;
use std::cell::Cell;
use std::collections::HashMap;

/// The image of a text, if it has one, and what embeds the text's tokens.
pub(super) struct Images {
    /// The token and the features, `[1, rows, width]`.
    image: Option<(i64, Value)>,
    copied_bytes: Cell<usize>,
}

/// The token that stands for an image, by config.json. `None` for a family whose texts have no images.
///
/// # Errors
/// `Invalid` without a token id.
fn image_token(model: &Model) -> Result<Option<i64>> {
    let Some(images) = model.family().decoder.as_ref().and_then(|decoder| decoder.images.as_ref()) else {
        return Ok(None);
    };
    let token = images.token.iter().find_map(|field| model.config_at(field)?.as_i64());
    token.map(Some).ok_or_else(|| {
        let field = images.token.first().map_or("", String::as_str);
        Error::invalid("a token id is required").in_file(model.folder().join("config.json")).in_field(field)
    })
}

/// As [`image_token`], the text of the token.
///
/// # Errors
/// As [`image_token`].
pub(super) fn image_token_text(model: &Model) -> Result<Option<String>> {
    let Some(token) = image_token(model)? else { return Ok(None) };
    Ok(Some(model.text()?.token(token).unwrap_or_else(|| token.to_string())))
}

/// The features of the image, `[1, rows, width]`, of a stage that ran.
fn features<'v>(model: &Model, values: &'v HashMap<String, Value>) -> Option<&'v Value> {
    let images = model.family().decoder.as_ref()?.images.as_ref()?;
    values.get(&images.features)
}

/// The tokens of a prompt, with as many image tokens as the image's features have rows.
///
/// # Errors
/// `Invalid` for a text with another number of images than one; `Corrupt` for features of another shape.
pub(super) fn expanded(run: &Run<'_>, ids: &[i64]) -> Result<Vec<i64>> {
    let (Some(token), Some(features)) = (image_token(run.model)?, features(run.model, &run.values)) else {
        return Ok(ids.to_vec());
    };
    let &[1, rows, _] = features.shape() else {
        return Err(Error::corrupt(format!("features of shape {:?}; [1, rows, width] is required", features.shape())));
    };
    let count = ids.iter().filter(|&&id| id == token).count();
    // A text of another program can have the token once for each row.
    if count == rows {
        return Ok(ids.to_vec());
    }
    if count != 1 {
        let name = image_token_text(run.model)?.unwrap_or_default();
        return Err(Error::invalid(format!("the text has {count} tokens {name}; one is required, where the image is")));
    }
    let of_token = |&id: &i64| std::iter::repeat_n(id, if id == token { rows } else { 1 });
    Ok(ids.iter().flat_map(of_token).collect())
}

impl Images {
    /// The image of a model's run, by the values of its stages.
    ///
    /// # Errors
    /// As [`image_token`].
    pub(super) fn of(model: &Model, values: &HashMap<String, Value>) -> Result<Self> {
        let image = image_token(model)?.zip(features(model, values).cloned());
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
        let (mut of_words, mut of_image) = (of_words.chunks_exact(width.max(1)), of_image.chunks_exact(width.max(1)));
        let mut all = Vec::with_capacity(ids.len() * width);
        for id in ids {
            let row = if id == token { of_image.next() } else { of_words.next() };
            all.extend_from_slice(row.unwrap_or_default());
        }
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
