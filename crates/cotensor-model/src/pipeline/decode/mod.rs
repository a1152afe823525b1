//! Decoding: a decoder reads a prompt, then one token after the other, and keeps its key-value cache in the engine.
//!
//! [`Decoder`] knows the graphs, [`decode`] is the loop. [`generation`](cotensor_preprocess::generation) has the rules by which
//! tokens are chosen.

mod decoder;
mod state;
mod steps;

pub use cotensor_preprocess::generation::{
    GenerationConfig, Request, Sampling, Settings, TimedSegment, Timestamps, process,
};
pub use decoder::{Decoder, DecoderGraph, Embed};
pub use state::DecoderState;
pub use steps::{Decoded, OnToken, decode};
