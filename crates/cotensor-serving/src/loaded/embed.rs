//! A request for embeddings, its answer and its errors.

use cotensor_core::{Error, Result};
use cotensor_model::model::Model;
use cotensor_model::pipeline::TextEmbedding;
use cotensor_model::preprocess::text::normalized;
use serde::Deserialize;
use std::collections::BTreeSet;

/// How texts are embedded: the arguments of `model.embed` beside the model and the texts, in this order.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmbedOptions {
    /// The prompt of the model that is put before each text. By default, the default prompt of the model's files.
    pub prompt_name: Option<String>,
    /// The variant of the model's graphs. By default, the first one that the model has.
    pub variant: Option<String>,
    /// The pooling. By default, that of the model's files.
    pub pooling: Option<String>,
    /// The number of dimensions; all by default. The first ones are scaled to length 1.
    pub dimensions: Option<usize>,
    /// Whether the end of a text that is too long is cut off; true by default. Otherwise, such a text is an error.
    pub truncate: Option<bool>,
    /// The position of the first text in the caller's list, for errors; 0 by default.
    pub first_index: usize,
}

/// The embeddings of a request.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// One for each text, in the order of the request.
    pub embeddings: Vec<TextEmbedding>,
    /// What a reader of the numbers has to know.
    pub notices: Vec<String>,
}

impl Embedded {
    /// The positions of the texts whose end was cut off.
    pub fn truncated(&self) -> impl Iterator<Item = usize> {
        let embeddings = self.embeddings.iter().enumerate();
        embeddings.filter(|(_, embedding)| embedding.is_truncated).map(|(at, _)| at)
    }

    /// The embeddings that the model gave, with the rules of the request.
    pub(super) fn of(
        model: &Model,
        embeddings: Vec<TextEmbedding>,
        options: &EmbedOptions,
    ) -> Result<Self, TextsError> {
        let notices: BTreeSet<&str> = embeddings.iter().filter_map(|embedding| embedding.notice.as_deref()).collect();
        let notices = notices.into_iter().map(str::to_owned).collect();
        let mut this = Self { embeddings, notices };
        if let Some(at) = this.truncated().next().filter(|_| options.truncate == Some(false)) {
            let tokens = this.embeddings[at].tokens;
            let message = format!("the text is longer than the {tokens} tokens that the model reads");
            return Err(TextsError::of_text(at, Error::invalid(message).in_field("truncate")));
        }
        let (Some(count), Some(first)) = (options.dimensions, this.embeddings.first()) else { return Ok(this) };
        let all = first.values.len();
        if count == 0 || count > all {
            let message = format!("the embeddings of this model have {all} dimensions");
            return Err(Error::invalid(message).in_field("dimensions").into());
        }
        if count < all {
            if !model.declares_dimensions(count) {
                this.notices.push(format!(
                    "the model's files declare no embeddings of {count} dimensions (matryoshka_dimensions in config.json); \
                     these are the first {count} of {all}"
                ));
            }
            for embedding in &mut this.embeddings {
                embedding.values = normalized(&embedding.values[..count]);
            }
        }
        Ok(this)
    }
}

/// Why a request for several texts failed.
#[derive(Debug)]
pub struct TextsError {
    /// The position of the text that caused it, if it is one text's.
    pub text: Option<usize>,
    /// The error.
    pub error: Error,
}

impl TextsError {
    pub(super) fn of_text(at: usize, error: Error) -> Self {
        Self { text: Some(at), error }
    }

    /// The error with the text as a field: `texts[3]`. `first` is the position of the request's first text in the caller's
    /// list.
    pub fn in_list(self, list: &str, first: usize) -> Error {
        let Some(at) = self.text else { return self.error };
        let error = Error::new(self.error.kind(), in_words(&self.error))
            .in_field(format!("{list}[{}]", first.saturating_add(at)));
        match self.error.file() {
            Some(file) => error.in_file(file),
            None => error,
        }
    }
}

impl From<Error> for TextsError {
    fn from(error: Error) -> Self {
        Self { text: None, error }
    }
}

/// The explanation, with the field unless that says only that it is a text.
pub(crate) fn in_words(error: &Error) -> String {
    match error.field().filter(|field| !["text", "truncate"].contains(field)) {
        Some(field) => format!("{field}: {}", error.message()),
        None => error.message().to_owned(),
    }
}
