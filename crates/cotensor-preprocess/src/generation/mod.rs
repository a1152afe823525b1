//! Writing text: the parameters of generation, and the choice of each token from the scores that a decoder gives.
//!
//! The rules are those of transformers. The loop that runs a decoder's graphs is in cotensor-pipeline.

mod config;
mod sampling;
mod scores;
mod settings;
mod speech;
mod timestamps;

pub use config::{FILE, GenerationConfig};
pub use sampling::Sampling;
pub use scores::process;
pub use settings::Settings;
pub use speech::{is_text, language_scores, languages, speech_prompt, transcript_of};
pub use timestamps::{TimedSegment, Timestamps};
