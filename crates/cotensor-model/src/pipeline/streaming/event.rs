use cotensor_pipeline::{Answer, Output};
use serde::{Deserialize, Serialize};

/// A result of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum StreamEvent {
    /// A finished piece of the transcript.
    Segment {
        /// Its number, from 0.
        segment: u64,
        /// Its beginning, in seconds from the beginning of the stream.
        start: f64,
        /// Its end, in seconds.
        end: f64,
        /// The text.
        text: String,
    },
    /// The text model's answer to a piece of the transcript.
    Answer {
        /// The number of the piece.
        segment: u64,
        /// The task.
        task: String,
        /// The answer.
        answer: Answer,
        /// The numbers behind the answer.
        outputs: Vec<Output>,
    },
    /// A change of the sound or a limit of a model. Each comes once.
    Notice {
        /// What it is.
        notice: String,
    },
}

/// What a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamSummary {
    /// Seconds of sound.
    pub seconds: f64,
    /// Windows that the speech model read.
    pub windows: u64,
    /// Pieces of the transcript.
    pub segments: u64,
    /// Seconds that the models ran.
    pub run_seconds: f64,
}
