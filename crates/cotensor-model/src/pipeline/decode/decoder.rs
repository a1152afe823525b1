use crate::engine::{Keep, LoadedGraph, Output, OutputAllocator, OwnMemory, RunState};
use crate::graph::Port;
use crate::pipeline::answer::numbers;
use crate::tensor::{Array, Value};
use cotensor_core::{DType, Error, Result};
use cotensor_preprocess::family::{DecoderDef, LOGITS, StageDef};
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
    /// Values of other stages by source: `encoder.last_hidden_state`, `text.mask`.
    pub values: &'a HashMap<String, Value>,
    /// Embeds tokens, for graphs that read `tokens.embeds`.
    pub embed: Option<&'a Embed<'a>>,
}

/// A value of the cache: the output and the input with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cached {
    pub(super) output: String,
    pub(super) input: String,
    /// Whether later runs only read it.
    pub(super) fixed: bool,
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
        let scores = last_row(results.remove(0).into_array()?)?;
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

    /// The outputs of `half` that later runs read. The first run must make them all; fixed ones stay as they are.
    pub(super) fn cached(&self, half: DecoderGraph<'_>, is_first: bool) -> Result<Vec<Cached>> {
        let outputs = half.graph.outputs().iter().filter_map(|port| {
            let input = format!("{}{}", self.def.past, port.name.strip_prefix(self.def.present.as_str())?);
            let fixed = input.contains(self.def.fixed.as_str());
            Some(Cached { output: port.name.clone(), input, fixed })
        });
        let past = self.step.graph.inputs().iter().map(|port| port.name.as_str());
        let past: Vec<&str> = past.filter(|name| name.starts_with(self.def.past.as_str())).collect();
        let cached: Vec<Cached> = outputs.filter(|each| past.contains(&each.input.as_str())).collect();
        if past.is_empty() {
            return Err(Error::unsupported(format!(
                "the decoder has no input {}…: export it with past (a cache of keys and values)",
                self.def.past
            )));
        }
        let is_needed = |input: &&&str| is_first || !input.contains(self.def.fixed.as_str());
        let is_made = |input: &&&str| cached.iter().any(|each| each.input == **input);
        match past.iter().filter(is_needed).find(|input| !is_made(input)) {
            Some(input) => {
                let message = format!("{} reads this, and {} does not output it", self.step.def.role, half.def.role);
                Err(Error::corrupt(message).in_field(*input))
            }
            None => Ok(cached),
        }
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
        let new = tokens.len();
        let positions = || (rows..rows + new).map(|row| row as i64).collect::<Vec<_>>();
        let mut bound = Vec::new();
        for port in half.graph.inputs().iter().filter(|port| !state.has(&port.name)) {
            let name = port.name.as_str();
            if let Some((_, value)) = past.iter().find(|(known, _)| known == name) {
                bound.push((name, value.clone()));
                continue;
            }
            let scalar = port.dims.as_ref().is_some_and(Vec::is_empty);
            let one = if scalar { vec![] } else { vec![1] };
            let source = half.def.inputs.get(name).or_else(|| half.def.inputs_optional.get(name));
            let value = match source.map(String::as_str) {
                Some("tokens.ids") => Array::i64([1, new], tokens.to_vec())?.into(),
                Some("tokens.embeds") => self.embeds(tokens)?,
                Some("tokens.mask") => Array::i64([1, rows + new], vec![1; rows + new])?.into(),
                Some("tokens.positions") => Array::i64([1, new], positions())?.into(),
                Some("tokens.cache_positions") => Array::i64([new], positions())?.into(),
                Some("tokens.logits") => Array::i64(one, vec![1])?.into(),
                Some("cache.filled") => Array::new(DType::Bool, one, vec![u8::from(rows > 0)])?.into(),
                Some(source) => self.values.get(source).cloned().ok_or_else(|| {
                    Error::invalid(format!("stage {:?} needs {source}, which no stage made", half.def.role))
                })?,
                None if rows == 0 && name.starts_with(self.def.past.as_str()) => empty(port)?,
                None => {
                    let message = format!("the family does not describe this input of {:?}", half.def.role);
                    return Err(Error::unsupported(message).in_field(name));
                }
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

/// A cache without rows for an input of a graph.
///
/// # Errors
/// `Unsupported` for an input without heads and width, or with another type.
pub(in crate::pipeline) fn empty_cache(port: Option<&Port>) -> Result<Value> {
    empty(port.ok_or_else(|| Error::unsupported("the graph has no such input"))?)
}

/// A cache without rows, for a graph that reads a cache in its first run, too.
fn empty(port: &Port) -> Result<Value> {
    let dims = port.dims.as_deref().unwrap_or_default();
    let count = dims.len();
    let size = |(at, dim): (usize, &Option<usize>)| match dim {
        Some(size) if at + 2 != count => Some(*size),
        None if at == 0 => Some(1),
        _ if at + 2 == count => Some(0),
        _ => None,
    };
    let shape: Option<Vec<usize>> = dims.iter().enumerate().map(size).collect();
    let shape = shape.filter(|shape| shape.len() >= 3).ok_or_else(|| {
        Error::unsupported("the graph must declare the heads and the width of this input").in_field(&port.name)
    })?;
    match port.dtype {
        None | Some(DType::F32) => Ok(Array::f32(shape, Vec::new())?.into()),
        Some(dtype @ (DType::F16 | DType::BF16)) => Ok(Array::new(dtype, shape, Vec::<u16>::new())?.into()),
        Some(other) => Err(Error::unsupported(format!("a cache of {other}")).in_field(&port.name)),
    }
}

/// The last row of logits, as `float32`.
///
/// # Errors
/// `Corrupt` for logits without a vocabulary, `Engine` for NaN or infinity.
pub(super) fn last_row(logits: Array) -> Result<Vec<f32>> {
    let logits = Value::from(logits);
    let values = logits.to_f32()?;
    let vocabulary = logits.shape().last().copied().filter(|&size| size > 0 && values.len() >= size);
    let vocabulary = vocabulary.ok_or_else(|| Error::corrupt("logits without a vocabulary").in_field(LOGITS))?;
    let row = &values[values.len() - vocabulary..];
    numbers(row)?;
    Ok(row.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_without_rows_has_the_sizes_of_the_graph() {
        let port = |dims: &[Option<usize>], dtype| Port { name: "past".into(), dtype, dims: Some(dims.to_vec()) };
        let value = empty(&port(&[None, Some(4), None, Some(8)], Some(DType::F16))).unwrap();
        assert_eq!((value.shape(), value.dtype()), (&[1, 4, 0, 8][..], DType::F16));
        assert_eq!(empty(&port(&[Some(1), None, Some(8)], None)).unwrap().shape(), [1, 0, 8]);
        for dims in [&[None, None, None, Some(8)][..], &[None, Some(4), None, None], &[]] {
            assert_eq!(empty(&port(dims, None)).err().unwrap().field(), Some("past"));
        }
        assert!(empty(&port(&[None, Some(4), None, Some(8)], Some(DType::I64))).is_err());
    }

    #[test]
    fn scores_are_those_of_the_last_token() {
        let logits = |shape: &[usize], values: &[f32]| last_row(Array::f32(shape, values.to_vec()).unwrap());
        assert_eq!(logits(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap(), [3.0, 4.0]);
        assert!(logits(&[1, 0], &[]).is_err() && logits(&[1, 2], &[f32::NAN, 1.0]).is_err());
    }
}
