use crate::engine::{Keep, LoadedGraph, Output, OutputAllocator, OwnMemory, RunState};
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{Error, Result};
use cotensor_pipeline::{Cached, DecoderInput, DecoderPorts, StagePorts, cached, decoder_input, last_row};
use cotensor_preprocess::family::{DecoderDef, LOGITS, Source, StageDef};
use std::collections::HashMap;

/// One graph of a decoder, and the meaning of its inputs.
#[derive(Clone, Copy)]
pub struct DecoderGraph<'a> {
    /// The graph.
    pub graph: &'a dyn LoadedGraph,
    /// Its description in the family.
    pub def: &'a StageDef,
}

/// Gives the embeddings of tokens, `[1, tokens, width]`.
pub type Embed<'a> = dyn Fn(&[i64]) -> Result<Value> + 'a;

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
    pub embed: Option<&'a Embed<'a>>,
}

impl<'a> DecoderGraph<'a> {
    fn ports(self) -> DecoderPorts<'a> {
        let ports = StagePorts { role: &self.def.role, inputs: self.graph.inputs(), outputs: self.graph.outputs() };
        DecoderPorts { ports, def: self.def }
    }
}

impl<'a> Decoder<'a> {
    /// As [`start`](Self::start), but returns arrays that a store can keep: the scores of the first token, and the cache
    /// in the order of the graph's outputs. [`resume`](Self::resume) continues from them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn read_prompt(&self, prompt: &[i64], allocator: &dyn OutputAllocator) -> Result<Vec<Output>> {
        let cached = self.cached(self.prompt, true)?;
        let inputs = self.first_inputs(prompt)?;
        let views = inputs.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<Vec<_>>>()?;
        let outputs: Vec<&str> =
            std::iter::once(LOGITS).chain(cached.iter().map(|each| each.output.as_str())).collect();
        let mut results = self.prompt.graph.run(&views, &outputs, &OwnMemory::counted_by(allocator))?;
        let scores = last_scores(&results.remove(0).into_array()?)?;
        results.insert(0, Array::f32([scores.len()], scores)?.into());
        Ok(results)
    }

    /// The inputs of the first run, by name.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn first_inputs(&self, prompt: &[i64]) -> Result<Vec<(&'a str, Value)>> {
        self.inputs(self.prompt, prompt, 0, &RunState::new(), &[])
    }

    /// As [`cached`].
    pub(super) fn cached(&self, half: DecoderGraph<'_>, is_first: bool) -> Result<Vec<Cached>> {
        cached(self.def, half.ports(), self.step.ports(), is_first)
    }

    /// The inputs of a run that are not in `state`: tokens, values of other stages, and the cache in `past`.
    /// `rows` is the number of tokens that the decoder has read.
    pub(super) fn inputs(
        &self,
        half: DecoderGraph<'a>,
        tokens: &[i64],
        rows: usize,
        state: &RunState,
        past: &[(String, Value)],
    ) -> Result<Vec<(&'a str, Value)>> {
        let mut bound = Vec::new();
        for port in half.graph.inputs().iter().filter(|port| !state.has(&port.name)) {
            let name = port.name.as_str();
            if let Some((_, value)) = past.iter().find(|(known, _)| known == name) {
                bound.push((name, value.clone()));
                continue;
            }
            let value = match decoder_input(self.def, half.def, port, tokens, rows)? {
                DecoderInput::Array(array) => array.into(),
                DecoderInput::Embeds => self.embeds(tokens)?,
                DecoderInput::Value(source) => self.values.get(source).cloned().ok_or_else(|| {
                    Error::invalid(format!("stage {:?} needs {source}, which no stage made", half.def.role))
                })?,
            };
            bound.push((name, value));
        }
        Ok(bound)
    }

    fn embeds(&self, tokens: &[i64]) -> Result<Value> {
        let embed = self.embed.ok_or_else(|| Error::unsupported("the family has no graph that embeds tokens"))?;
        embed(tokens)
    }

    /// What a run of `half` keeps. Fixed values are kept from the first run only.
    pub(super) fn keeps<'c>(cached: &'c [Cached], is_first: bool, rows_max: usize) -> Vec<Keep<'c>> {
        let kept = cached.iter().filter(|each| is_first || !each.fixed);
        kept.map(|each| Keep { output: &each.output, input: &each.input, rows_max: (!each.fixed).then_some(rows_max) })
            .collect()
    }
}

/// The last row of logits, as `float32`.
///
/// # Errors
/// As [`last_row`].
pub(super) fn last_scores(logits: &Array) -> Result<Vec<f32>> {
    last_row(logits.shape(), &TensorRef::from(logits).to_f32()?).map(<[f32]>::to_vec)
}
