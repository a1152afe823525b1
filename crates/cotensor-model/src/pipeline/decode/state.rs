use super::decoder::{Decoder, last_scores};
use crate::engine::{Keep, Output, OutputAllocator, OwnMemory, RunState};
use crate::tensor::{Array, Value};
use cotensor_core::{Error, Result};
use cotensor_pipeline::{Cached, DecoderHost, DecoderPorts, Half, at_once, first_inputs, kept_by};
use cotensor_preprocess::family::{DecoderDef, LOGITS, Source};
use cotensor_preprocess::generation::Settings;
use std::borrow::Cow;
use std::cell::RefCell;

/// Called with each token as soon as it is chosen. An error stops the decoding.
pub type OnToken<'a> = dyn FnMut(i64) -> Result<()> + 'a;

/// The tokens of a decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The tokens, without the prompt and without the end token.
    pub tokens: Vec<i64>,
    /// The bytes of the cache that the engine copied.
    pub copied_bytes: u64,
}

/// A decoder that has read some tokens. Its cache is in the engine.
pub struct DecoderState<'a>(cotensor_pipeline::Decoder<Host<'a>>);

/// Runs the graphs of a decoder in an engine, which keeps the cache.
pub(super) struct Host<'a> {
    decoder: Decoder<'a>,
    /// The part of the cache that is in a store, until the engine extends it.
    past: RefCell<Vec<(String, Value)>>,
    state: RefCell<RunState>,
    rows_max: usize,
    allocator: &'a dyn OutputAllocator,
}

impl Decoder<'_> {
    /// Reads the prompt. Returns the state, and the scores of the first token. The cache grows to at most `rows_max`
    /// tokens.
    ///
    /// # Errors
    /// As [`LoadedGraph::run_keeping`](crate::engine::LoadedGraph::run_keeping); `Unsupported` for a decoder without a cache or
    /// for an input that the family does not describe; `Corrupt` when outputs and inputs of the graphs do not match.
    pub fn start<'s>(
        &'s self,
        prompt: &[i64],
        rows_max: usize,
        allocator: &'s dyn OutputAllocator,
    ) -> Result<(DecoderState<'s>, Vec<f32>)> {
        let mut state = DecoderState(cotensor_pipeline::Decoder::new(Host::new(self, rows_max, allocator))?);
        let scores = state.read(prompt)?;
        Ok((state, scores))
    }

    /// As [`start`](Self::start), but returns arrays that a store can keep: the scores of the first token, and the cache
    /// in the order of the graph's outputs. [`resume`](Self::resume) continues from them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn read_prompt(&self, prompt: &[i64], allocator: &dyn OutputAllocator) -> Result<Vec<Output>> {
        let memory = OwnMemory::counted_by(allocator);
        let host = Host::new(self, 0, &memory);
        let cached = kept_by(&host, Half::Prompt)?;
        let inputs = at_once(first_inputs(&host, prompt))?;
        let views = inputs.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<Vec<_>>>()?;
        let outputs: Vec<&str> =
            std::iter::once(LOGITS).chain(cached.iter().map(|each| each.output.as_str())).collect();
        let mut results = self.prompt.graph.run(&views, &outputs, &memory)?;
        let scores = last_scores(&results.remove(0).into_array()?)?;
        results.insert(0, Array::f32([scores.len()], scores)?.into());
        Ok(results)
    }

    /// The inputs of the first run, by name.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn first_inputs(&self, prompt: &[i64]) -> Result<Vec<(String, Value)>> {
        let memory = OwnMemory::default();
        let host = Host::new(self, 0, &memory);
        let inputs = at_once(first_inputs(&host, prompt))?;
        Ok(inputs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Continues from the results of [`read_prompt`](Self::read_prompt) for a prompt of `rows` tokens. The engine reads
    /// them in place, and copies what it extends.
    ///
    /// # Errors
    /// `Corrupt` when the number of results is another one, or as [`start`](Self::start).
    pub fn resume<'s>(
        &'s self,
        results: &[Value],
        rows: usize,
        rows_max: usize,
        allocator: &'s dyn OutputAllocator,
    ) -> Result<(DecoderState<'s>, Vec<f32>)> {
        let host = Host::new(self, rows_max, allocator);
        let cached = kept_by(&host, Half::Prompt)?;
        let Some((scores, past)) = results.split_first().filter(|(_, past)| past.len() == cached.len()) else {
            return Err(Error::corrupt(format!(
                "{} results of a prompt; {} expected",
                results.len(),
                cached.len() + 1
            )));
        };
        let past = cached.into_iter().zip(past).map(|(each, value)| (each.input, value.clone())).collect();
        let host = Host { past: RefCell::new(past), ..host };
        Ok((DecoderState(cotensor_pipeline::Decoder::resume(host, rows)?), scores.to_f32()?.into_owned()))
    }
}

impl DecoderState<'_> {
    /// Reads further tokens and returns the scores of the next one.
    ///
    /// # Errors
    /// As [`LoadedGraph::run_keeping`](crate::engine::LoadedGraph::run_keeping).
    pub fn read(&mut self, tokens: &[i64]) -> Result<Vec<f32>> {
        at_once(self.0.read(tokens))
    }
}

/// Decodes from a state that has read `prompt`; `scores` are the scores of the first token.
///
/// # Errors
/// As [`cotensor_pipeline::decode`].
pub fn decode(
    mut state: DecoderState<'_>,
    scores: Vec<f32>,
    prompt: &[i64],
    settings: &Settings,
    on_token: &mut OnToken<'_>,
) -> Result<Decoded> {
    let on_token = async |token| on_token(token);
    let tokens = at_once(cotensor_pipeline::decode(&mut state.0, scores, prompt, settings, on_token))?;
    let host = state.0.host();
    let copied_bytes = host.state.borrow().copied_bytes();
    host.allocator.record_state_copy(copied_bytes);
    Ok(Decoded { tokens, copied_bytes })
}

impl<'a> Host<'a> {
    /// A host without a cache.
    pub(super) fn new(decoder: &Decoder<'a>, rows_max: usize, allocator: &'a dyn OutputAllocator) -> Self {
        Self { decoder: decoder.clone(), past: RefCell::default(), state: RefCell::default(), rows_max, allocator }
    }
}

impl DecoderHost for Host<'_> {
    type Value = Value;

    fn def(&self) -> &DecoderDef {
        self.decoder.def
    }

    fn graph(&self, half: Half) -> DecoderPorts<'_> {
        self.decoder.half(half).ports()
    }

    fn value(&self, source: &Source) -> Option<Value> {
        self.decoder.values.get(source).cloned()
    }

    fn image(&self) -> Option<(i64, Value)> {
        self.decoder.embed?.image.clone()
    }

    async fn embed(&self, tokens: &[i64]) -> Result<Value> {
        let embed = self.decoder.embed;
        embed.ok_or_else(|| Error::unsupported("the family has no graph that embeds tokens"))?.of_words(tokens)
    }

    async fn numbers<'v>(&self, value: &'v Value) -> Result<(Vec<usize>, Cow<'v, [f32]>)> {
        Ok((value.shape().to_vec(), value.to_f32()?))
    }

    async fn run(&self, half: Half, inputs: &[(&str, Value)], keep: &[&Cached]) -> Result<Vec<f32>> {
        let graph = self.decoder.half(half).graph;
        let keep = keep.iter().map(|each| {
            let rows_max = (!each.fixed).then_some(self.rows_max);
            Keep { output: &each.output, input: &each.input, rows_max }
        });
        let keep: Vec<Keep<'_>> = keep.collect();
        let mut past = self.past.borrow_mut();
        let of_past = past.iter().filter(|(name, _)| graph.inputs().iter().any(|port| port.name == *name));
        let of_past = of_past.map(|(name, value)| (name.as_str(), value));
        let all = inputs.iter().map(|(name, value)| (*name, value)).chain(of_past);
        let views = all.map(|(name, value)| Ok((name, value.tensor()?))).collect::<Result<Vec<_>>>()?;
        let state = &mut self.state.borrow_mut();
        let mut logits = graph.run_keeping(&views, &[LOGITS], state, &keep, self.allocator)?;
        // The engine has the values that it extends; the others stay in the store.
        past.retain(|(input, _)| keep.iter().all(|keep| keep.input != *input));
        let logits = logits.pop().ok_or_else(|| Error::corrupt("the decoder gave no logits").in_field(LOGITS))?;
        last_scores(&logits.into_array()?)
    }

    fn record_copy(&self, bytes: usize) {
        if let Some(embed) = self.decoder.embed {
            embed.note_copy(bytes);
        }
    }
}
