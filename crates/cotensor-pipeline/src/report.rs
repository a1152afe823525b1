//! The report of a run.

use super::answer::{Answer, Output};
use serde::{Deserialize, Serialize};

/// The answer to a user, and the report of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserReport {
    /// The user's name.
    pub user: String,
    /// The task.
    pub task: String,
    /// The name of the model.
    pub model: String,
    /// The answer.
    pub answer: Answer,
    /// The numbers behind the answer.
    pub outputs: Vec<Output>,
    /// The preparations before the stages, in order: `tokenizer` (opened), `text`, `image`, `audio` (preprocessed).
    pub prepared: Vec<StageReport>,
    /// The stages, in the order in which they ran.
    pub stages: Vec<StageReport>,
    /// Milliseconds for the signatures in this report. A private copy needs the hashes of its inputs for nothing else.
    pub report_ms: f64,
    /// Changes of the inputs: a truncated text, resampled audio.
    pub notices: Vec<String>,
    /// Numbers of the checkpoint that the answer depends on beside the stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<Constant>,
}

/// A number of the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The name of the checkpoint's tensor: `logit_scale`.
    pub name: String,
    /// The number. Of a scale: the factor, not its logarithm.
    pub value: f32,
    /// The file that has it, relative to the model's folder.
    pub file: String,
}

/// The report of one stage in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageReport {
    /// The role.
    pub role: String,
    /// The identity of the computation: equal signatures on equal input give equal results.
    pub signature: String,
    /// The space; `None` for a private copy.
    pub space: Option<String>,
    /// Whether this user computed it. Otherwise the store had the result.
    pub computed: bool,
    /// Milliseconds for opening.
    pub load_ms: f64,
    /// Milliseconds for running, or for waiting for the result.
    pub run_ms: f64,
    /// The bytes of a decoder's cache that the engine copied between runs.
    #[serde(default)]
    pub cache_copied_bytes: u64,
}

impl StageReport {
    /// A report on a preparation, with zero times.
    pub fn without_stage(role: &str, signature: &str, computed: bool) -> Self {
        let (role, signature) = (role.to_owned(), signature.to_owned());
        Self { role, signature, space: None, computed, load_ms: 0.0, run_ms: 0.0, cache_copied_bytes: 0 }
    }
}
