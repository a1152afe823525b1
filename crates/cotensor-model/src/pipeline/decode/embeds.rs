use crate::model::{Model, StageSource};
use crate::stage::Stage;
use crate::tensor::{TensorRef, Value};
use cotensor_core::{Error, Result};
use cotensor_pipeline::image_token;
use cotensor_preprocess::family::Source;
use cotensor_store::CopyReason;
use std::cell::Cell;
use std::collections::HashMap;

/// Embeds the tokens of a text, for graphs that read `tokens.embeds`.
pub struct Embeds<'a> {
    stage: &'a Stage,
    /// The token that stands for an image, and the features, `[1, rows, width]`.
    pub(super) image: Option<(i64, Value)>,
    copied_bytes: Cell<usize>,
}

impl<'a> Embeds<'a> {
    /// The graph of a model's embeddings, and the image of a run with these values.
    ///
    /// # Errors
    /// As [`image_token`].
    pub(in crate::pipeline) fn of(model: &Model, stage: &'a Stage, values: &HashMap<Source, Value>) -> Result<Self> {
        let images = model.family().decoder.as_ref().and_then(|decoder| decoder.images.as_ref());
        let features = images.and_then(|images| values.get(&images.features)).cloned();
        let image = image_token(&model.model_config())?.zip(features);
        Ok(Self { stage, image, copied_bytes: Cell::new(0) })
    }

    /// The embeddings of tokens that stand for no image, `[1, tokens, width]`.
    pub(super) fn of_words(&self, ids: &[i64]) -> Result<Value> {
        let (role, graph) = (&self.stage.role, self.stage.graph());
        let ([input], [output, ..]) = (graph.inputs(), graph.outputs()) else {
            return Err(Error::unsupported("a graph of embeddings has one input").in_field(role));
        };
        let shape = [1, ids.len()];
        let ids = TensorRef::i64(&shape, ids)?;
        let mut embeds = graph.run_alone(&[(&input.name, ids)], &[&output.name])?;
        embeds.pop().map(Value::from).ok_or_else(|| Error::corrupt("no embeddings").in_field(role))
    }

    pub(super) fn note_copy(&self, bytes: usize) {
        self.copied_bytes.set(self.copied_bytes.get() + bytes);
    }

    /// Counts the bytes that were copied for the image.
    pub(in crate::pipeline) fn record_copies(&self, model: &Model) {
        if let (StageSource::Shared(loader), bytes @ 1..) = (model.source(), self.copied_bytes.get()) {
            loader.store().record_copy("prompt with an image", CopyReason::Preprocessed, bytes);
        }
    }
}
