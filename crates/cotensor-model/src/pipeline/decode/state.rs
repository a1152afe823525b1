use super::decoder::{Decoder, DecoderGraph, last_scores};
use crate::engine::{OutputAllocator, RunState};
use crate::tensor::Value;
use cotensor_core::{Error, Result};
use cotensor_pipeline::Cached;
use cotensor_preprocess::family::LOGITS;

/// A decoder that has read some tokens. Its cache is in the engine.
pub struct DecoderState<'a> {
    decoder: Decoder<'a>,
    /// What runs of the step graph keep.
    cached: Vec<Cached>,
    /// The part of the cache that is in a store, until the engine extends it.
    past: Vec<(String, Value)>,
    state: RunState,
    rows: usize,
    rows_max: usize,
}

impl<'a> Decoder<'a> {
    /// Reads the prompt. Returns the state, and the scores of the first token. The cache grows to at most `rows_max`
    /// tokens.
    ///
    /// # Errors
    /// As [`LoadedGraph::run_keeping`](crate::engine::LoadedGraph::run_keeping); `Unsupported` for a decoder without a cache or
    /// for an input that the family does not describe; `Corrupt` when outputs and inputs of the graphs do not match.
    pub fn start(
        &self,
        prompt: &[i64],
        rows_max: usize,
        allocator: &dyn OutputAllocator,
    ) -> Result<(DecoderState<'a>, Vec<f32>)> {
        let mut state = DecoderState::new(self.clone(), Vec::new(), 0, rows_max)?;
        let scores = state.run(self.prompt, prompt, allocator)?;
        Ok((state, scores))
    }

    /// Continues from the results of [`read_prompt`](Self::read_prompt) for a prompt of `rows` tokens. The engine reads
    /// them in place, and copies what it extends.
    ///
    /// # Errors
    /// `Corrupt` when the number of results is another one, or as [`start`](Self::start).
    pub fn resume(&self, results: &[Value], rows: usize, rows_max: usize) -> Result<(DecoderState<'a>, Vec<f32>)> {
        let cached = self.cached(self.prompt, true)?;
        let Some((scores, past)) = results.split_first().filter(|(_, past)| past.len() == cached.len()) else {
            return Err(Error::corrupt(format!(
                "{} results of a prompt; {} expected",
                results.len(),
                cached.len() + 1
            )));
        };
        let past = cached.into_iter().zip(past).map(|(each, value)| (each.input, value.clone())).collect();
        Ok((DecoderState::new(self.clone(), past, rows, rows_max)?, scores.to_f32()?.into_owned()))
    }
}

impl<'a> DecoderState<'a> {
    pub(super) fn new(decoder: Decoder<'a>, past: Vec<(String, Value)>, rows: usize, rows_max: usize) -> Result<Self> {
        let cached = decoder.cached(decoder.step, false)?;
        Ok(Self { decoder, cached, past, state: RunState::new(), rows, rows_max })
    }

    /// Reads further tokens and returns the scores of the next one.
    ///
    /// # Errors
    /// As [`LoadedGraph::run_keeping`](crate::engine::LoadedGraph::run_keeping).
    pub fn read(&mut self, tokens: &[i64], allocator: &dyn OutputAllocator) -> Result<Vec<f32>> {
        self.run(self.decoder.step, tokens, allocator)
    }

    pub(super) fn run(
        &mut self,
        half: DecoderGraph<'a>,
        tokens: &[i64],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<f32>> {
        let is_first = self.rows == 0;
        let of_prompt;
        let cached = if is_first {
            of_prompt = self.decoder.cached(half, true)?;
            &of_prompt
        } else {
            &self.cached
        };
        let keep = Decoder::keeps(cached, is_first, self.rows_max);
        let inputs = self.decoder.inputs(half, tokens, self.rows, &self.state, &self.past)?;
        let views = inputs.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<Vec<_>>>()?;
        let mut logits = half.graph.run_keeping(&views, &[LOGITS], &mut self.state, &keep, allocator)?;
        // The engine has the values that it extends; the others stay in the store.
        self.past.retain(|(input, _)| keep.iter().all(|keep| keep.input != *input));
        self.rows += tokens.len();
        let logits = logits.pop().ok_or_else(|| Error::corrupt("the decoder gave no logits").in_field(LOGITS))?;
        last_scores(&logits.into_array()?)
    }

    /// The number of tokens that the decoder has read.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The bytes of the cache that the engine copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.state.copied_bytes()
    }
}
