//! Sentence embeddings of many texts at a time.

use super::numbers::check_numbers;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_preprocess::text::TextTokens;
use cotensor_preprocess::{SentenceProcessor, TokenBatch};

/// The label of sentence embeddings in the store.
pub const SENTENCE_LABEL: &str = "sentence embedding v2";

/// The changes that a prompt makes beside the tokens.
#[derive(Clone, Copy, Debug)]
pub struct SentencePrompt {
    /// The number of its tokens.
    pub tokens: usize,
    /// The number of the task, for a graph that reads it.
    pub task: Option<i64>,
}

/// What identifies the embedding of a text beside the model and its settings.
pub fn tokens_key(tokens: &TextTokens, prompt: SentencePrompt) -> ContentHash {
    let mut hasher = Hasher::new("tokens of a sentence v2");
    for &id in tokens.ids() {
        hasher.number(u64::from(id));
    }
    // Those of most tokenizers are zero. Tokens that a caller passes have none.
    if tokens.type_ids().iter().any(|&of_token| of_token != 0) {
        // No id.
        hasher.number(u64::MAX);
        tokens.type_ids().iter().for_each(|&of_token| {
            hasher.number(u64::from(of_token));
        });
    }
    hasher.number(prompt.tokens as u64);
    if let Some(task) = prompt.task {
        hasher.number(task as u64);
    }
    hasher.finish()
}

/// The output of a graph for several texts.
#[derive(Clone, Copy, Debug)]
pub struct SentenceOutput<'a> {
    /// The name.
    pub name: &'a str,
    /// Dimensions: `[texts, width]` if it is pooled, else `[texts, tokens, width]`.
    pub shape: &'a [usize],
    /// The elements.
    pub values: &'a [f32],
    /// Whether the graph pools.
    pub is_pooled: bool,
}

impl SentenceOutput<'_> {
    /// The embedding of each text of `batch`; `prompt_tokens` is the number of tokens of the prompt. The error of a text is
    /// `Engine` for numbers that overflow, or as [`SentenceProcessor::pool`].
    ///
    /// # Errors
    /// `Unsupported` for an output of another shape.
    pub fn pooled(
        &self,
        sentence: &SentenceProcessor,
        batch: &TokenBatch,
        prompt_tokens: usize,
    ) -> Result<Vec<Result<Vec<f32>>>> {
        let count = batch.truncated.len();
        let tokens = batch.added.len() / count.max(1);
        let width = match (self.shape, self.is_pooled) {
            (&[rows, width], true) if rows == count && width > 0 => width,
            (&[rows, found, width], false) if rows == count && found == tokens && width > 0 => width,
            (shape, _) => {
                let message = format!("the graph gives {shape:?} for {count} texts of {tokens} tokens");
                return Err(Error::unsupported(message).in_field(self.name));
            }
        };
        if self.is_pooled {
            let pooled = self.values.chunks_exact(width).map(|row| {
                check_numbers(row)?;
                let mut row = row.to_vec();
                sentence.truncate(&mut row);
                Ok(row)
            });
            return Ok(pooled.collect());
        }
        let rows = self.values.chunks_exact(tokens * width).zip(batch.mask.as_i64()?.chunks_exact(tokens));
        let pooled = rows.map(|(rows, mask)| {
            check_numbers(rows)?;
            sentence.pool(rows, width, mask, prompt_tokens)
        });
        Ok(pooled.collect())
    }
}
