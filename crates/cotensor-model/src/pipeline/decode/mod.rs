//! Decoding on a machine: the graphs of a decoder, whose engine keeps its key-value cache.
//!
//! The loop is [`cotensor_pipeline::decode`]. [`generation`](cotensor_preprocess::generation) has the rules by which tokens are
//! chosen.

mod decoder;
mod embeds;
mod state;

pub use cotensor_preprocess::generation::{GenerationConfig, Sampling, Settings, TimedSegment, Timestamps, process};
pub use decoder::{Decoder, DecoderGraph};
pub use embeds::Embeds;
pub use state::{Decoded, DecoderState, OnToken, decode};
