use super::embeds::Embeds;
use crate::engine::LoadedGraph;
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::Result;
use cotensor_pipeline::{DecoderPorts, Half, StagePorts, last_row};
use cotensor_preprocess::family::{DecoderDef, Source, StageDef};
use std::collections::HashMap;

/// One graph of a decoder, and the meaning of its inputs.
#[derive(Clone, Copy)]
pub struct DecoderGraph<'a> {
    /// The graph.
    pub graph: &'a dyn LoadedGraph,
    /// Its description in the family.
    pub def: &'a StageDef,
}

/// A decoder: one graph that reads the prompt and later tokens, or one for each.
#[derive(Clone)]
pub struct Decoder<'a> {
    /// The names of the values that runs keep.
    pub def: &'a DecoderDef,
    /// Reads the prompt and fills the cache.
    pub prompt: DecoderGraph<'a>,
    /// Reads one token and extends the cache. May be the same graph.
    pub step: DecoderGraph<'a>,
    /// Values of other stages and of texts.
    pub values: &'a HashMap<Source, Value>,
    /// Embeds tokens, for graphs that read `tokens.embeds`.
    pub embed: Option<&'a Embeds<'a>>,
}

impl<'a> DecoderGraph<'a> {
    pub(super) fn ports(self) -> DecoderPorts<'a> {
        let ports = StagePorts { role: &self.def.role, inputs: self.graph.inputs(), outputs: self.graph.outputs() };
        DecoderPorts { ports, def: self.def }
    }
}

impl<'a> Decoder<'a> {
    pub(super) fn half(&self, half: Half) -> DecoderGraph<'a> {
        match half {
            Half::Prompt => self.prompt,
            Half::Step => self.step,
        }
    }
}

/// The last row of logits, as `float32`.
///
/// # Errors
/// As [`last_row`].
pub(super) fn last_scores(logits: &Array) -> Result<Vec<f32>> {
    last_row(logits.shape(), &TensorRef::from(logits).to_f32()?).map(<[f32]>::to_vec)
}
