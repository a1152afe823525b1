//! Decoding: a decoder reads a prompt, then one token after the other, and keeps its key-value cache in the engine.
//!
//! [`Decoder`] knows the graphs, [`GenerationConfig`] the files of the model, [`Settings`] what changes the tokens.
//! [`decode`] is the loop.

mod config;
mod decoder;
mod sampling;
mod scores;
mod settings;
mod state;
mod steps;
mod timestamps;

pub(crate) use config::NEW_TOKENS_MAX;
pub use config::{GenerationConfig, Request};
pub(super) use decoder::empty_cache;
pub use decoder::{Decoder, DecoderGraph, Embed};
pub use sampling::Sampling;
pub use scores::process;
pub use settings::Settings;
pub use state::DecoderState;
pub use steps::{Decoded, OnToken, decode};
pub use timestamps::{TimedSegment, Timestamps};
