//! The memory that attention, and the logits of a causal language model, need for long texts.

use cotensor_core::{Error, ErrorKind, size};
use cotensor_preprocess::family::ModelConfig;

/// The fields of config.json with the number of attention heads.
const HEADS: &[&str] = &[
    "num_attention_heads",
    "text_config.num_attention_heads",
    "encoder_attention_heads",
    "text_config.encoder_attention_heads",
    "num_heads",
    "text_config.num_heads",
    "n_heads",
    "n_head",
];
/// The copies of the scores that exist at a time: products, products with the mask, and their softmax.
const COPIES: u64 = 3;
/// Less memory than this, in bytes, is not compared with the memory that is left.
const CHECKED_BYTES_MIN: u64 = 64 << 20;

/// The memory for the attention and the logits of one run of a graph. The layers of a graph run one after the other, so that the scores of
/// one layer exist at a time.
#[derive(Clone, Debug)]
pub struct AttentionMemory {
    rows: usize,
    /// Of each row.
    tokens: usize,
    /// None without a known number of heads.
    bytes: Option<u64>,
    /// Of the logits, if the graph gives them for each token.
    logit_bytes: u64,
}

impl AttentionMemory {
    /// Of `rows` texts of `tokens` each.
    pub fn of(config: &ModelConfig<'_>, rows: usize, tokens: usize) -> Self {
        let heads = HEADS.iter().find_map(|field| config.at(field)?.as_u64());
        let bytes = heads.map(|heads| score_bytes(rows as u64, heads, tokens as u64));
        Self { rows, tokens, bytes, logit_bytes: 0 }
    }

    /// With a logit of each of `words` for each token.
    #[must_use]
    pub fn with_logits(self, words: usize) -> Self {
        let count = (self.rows as u64).saturating_mul(self.tokens as u64).saturating_mul(words as u64);
        Self { logit_bytes: count.saturating_mul(size_of::<f32>() as u64), ..self }
    }

    /// `None` if nothing is known.
    fn total(&self) -> Option<u64> {
        let attention = self.bytes.or_else(|| (self.logit_bytes > 0).then_some(0));
        attention.map(|bytes| bytes.saturating_add(self.logit_bytes))
    }

    /// The bytes to compare with the memory that is left; `None` for few bytes.
    pub fn checked_bytes(&self) -> Option<u64> {
        self.total().filter(|bytes| *bytes >= CHECKED_BYTES_MIN)
    }

    /// Adds the length to the error of an engine that got no memory.
    pub fn explain(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::OverBudget => error.prefixed(self.in_words()),
            _ => error,
        }
    }

    fn in_words(&self) -> String {
        let texts = if self.rows == 1 { String::new() } else { format!("{} texts of ", self.rows) };
        let holds = if self.logit_bytes > 0 { "attention and logits" } else { "attention" };
        let memory = self.total().map_or(String::new(), |bytes| format!(" need {} for {holds}", size(bytes)));
        format!("{texts}{} tokens{memory}", self.tokens)
    }
}

/// The bytes of float32 scores: for each row and head, a number for each pair of tokens.
fn score_bytes(rows: u64, heads: u64, tokens: u64) -> u64 {
    [rows, heads, tokens, tokens, size_of::<f32>() as u64].into_iter().fold(COPIES, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_grow_with_the_square_of_the_tokens() {
        assert_eq!(score_bytes(1, 12, 4000), 3 * 12 * 4000 * 4000 * 4);
        assert_eq!(score_bytes(1, 12, u64::MAX), u64::MAX);
    }

    #[test]
    fn error_of_an_engine_without_memory_has_the_length() {
        let memory = AttentionMemory { rows: 1, tokens: 4000, bytes: Some(3 << 30), logit_bytes: 0 };
        let error = memory.explain(Error::new(ErrorKind::OverBudget, "onnxruntime got no memory"));
        assert_eq!(error.message(), "4000 tokens need 3.00 GiB for attention: onnxruntime got no memory");
        assert_eq!(memory.explain(Error::invalid("a")).message(), "a");
        // 128 Ki words.
        let memory = memory.with_logits(1 << 17);
        assert_eq!(memory.total(), Some((3 << 30) + 4000 * (1 << 17) * 4));
        assert_eq!(memory.in_words(), "4000 tokens need 4.95 GiB for attention and logits");
        let most = AttentionMemory { rows: usize::MAX, tokens: usize::MAX, bytes: None, logit_bytes: 0 };
        assert_eq!(most.with_logits(usize::MAX).total(), Some(u64::MAX));
    }
}
