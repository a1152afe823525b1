use super::answer::{Answer, Output};
use serde::{Deserialize, Serialize};

/// What one user got, and what it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserReport {
    /// The user's name.
    pub user: String,
    /// Its task.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// The answer.
    pub answer: Answer,
    /// The numbers behind it.
    pub outputs: Vec<Output>,
    /// What had to be ready before the stages, in order: `tokenizer` (opened), `text`, `image`, `audio` (preprocessed).
    pub prepared: Vec<StageReport>,
    /// What ran, in order.
    pub stages: Vec<StageReport>,
    /// Milliseconds that went into this report's signatures alone: a private copy has no other use for its inputs' hashes.
    pub report_ms: f64,
    /// What was served differently than asked: a truncated text, resampled audio.
    pub notices: Vec<String>,
}

/// One stage's part in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageReport {
    /// Its role.
    pub role: String,
    /// What was run: stages with equal signature on equal input give equal results.
    pub signature: String,
    /// Its space; none for a private copy.
    pub space: Option<String>,
    /// Whether this user ran it; otherwise the result was there.
    pub computed: bool,
    /// Milliseconds that this user spent opening it.
    pub load_ms: f64,
    /// Milliseconds that this user spent running it or waiting for its result.
    pub run_ms: f64,
}

impl StageReport {
    /// A report on something that is no stage of a graph; nothing took time yet.
    pub(super) fn without_stage(role: &str, signature: &str, computed: bool) -> Self {
        let (role, signature) = (role.to_owned(), signature.to_owned());
        Self { role, signature, space: None, computed, load_ms: 0.0, run_ms: 0.0 }
    }
}
