use super::sampling::Sampling;
use super::timestamps::Timestamps;
use cotensor_core::{ContentHash, Hasher};
use serde::Serialize;

/// Everything besides model and prompt that decides the tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The fewest tokens before an end token counts.
    pub min: usize,
    /// The most tokens.
    pub max: usize,
    /// The tokens that end the text; not part of the result.
    pub ends: Vec<i64>,
    /// The first token after a prompt of one token.
    pub forced_first: Option<i64>,
    /// The token at the last position.
    pub forced_last: Vec<i64>,
    /// Tokens that are never chosen.
    pub suppressed: Vec<i64>,
    /// Tokens that are not chosen first.
    pub suppressed_first: Vec<i64>,
    /// Scores of tokens that occurred are divided by it if positive, multiplied if negative; 1 for no change.
    pub repetition_penalty: f32,
    /// No sequence of this many tokens occurs twice; 0 for no limit.
    pub no_repeat_ngram: usize,
    /// The rules of timestamps, for a text that has them.
    pub timestamps: Option<Timestamps>,
    /// How a token is drawn; `None` for the token with the highest score.
    pub sampling: Option<Sampling>,
}

impl Settings {
    /// Plain greedy decoding of at most `max` tokens.
    pub fn greedy(max: usize) -> Self {
        Self {
            min: 0,
            max,
            ends: Vec::new(),
            forced_first: None,
            forced_last: Vec::new(),
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            repetition_penalty: 1.0,
            no_repeat_ngram: 0,
            timestamps: None,
            sampling: None,
        }
    }

    /// A hash: equal settings give equal tokens on equal scores.
    pub fn hash(&self) -> ContentHash {
        let text = serde_json::to_vec(self).unwrap_or_default();
        Hasher::new("cotensor decoding v1").field(&text).finish()
    }
}
