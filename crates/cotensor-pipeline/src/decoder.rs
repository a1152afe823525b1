//! The graphs of a decoder: which outputs one run keeps for the next, and the row of its logits that decides the next token.
//!
//! [`decode`](super::decode()) runs them.

use super::numbers::check_numbers;
use super::ports::StagePorts;
use cotensor_core::{DType, Error, Result};
use cotensor_graph::Port;
use cotensor_preprocess::Array;
use cotensor_preprocess::family::{DecoderDef, LOGITS, StageDef};

/// One graph of a decoder, and the meaning of its inputs.
#[derive(Clone, Copy, Debug)]
pub struct DecoderPorts<'a> {
    /// The graph.
    pub ports: StagePorts<'a>,
    /// Its description in the family.
    pub def: &'a StageDef,
}

/// A value of the cache: the output and the input with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The output of the graph that makes it.
    pub output: String,
    /// The input of later runs that reads it.
    pub input: String,
    /// Whether later runs only read it.
    pub fixed: bool,
}

/// The outputs of `half` that later runs of `step` read. The first run must make them all; fixed ones stay as they are.
///
/// # Errors
/// `Unsupported` for a decoder without a cache; `Corrupt` when outputs and inputs of the graphs do not match.
pub(super) fn cached(
    decoder: &DecoderDef,
    half: DecoderPorts<'_>,
    step: DecoderPorts<'_>,
    is_first: bool,
) -> Result<Vec<Cached>> {
    let outputs = half.ports.outputs.iter().filter_map(|port| {
        let input = format!("{}{}", decoder.past, port.name.strip_prefix(decoder.present.as_str())?);
        let fixed = input.contains(decoder.fixed.as_str());
        Some(Cached { output: port.name.clone(), input, fixed })
    });
    let past = step.ports.inputs.iter().map(|port| port.name.as_str());
    let past: Vec<&str> = past.filter(|name| name.starts_with(decoder.past.as_str())).collect();
    let cached: Vec<Cached> = outputs.filter(|each| past.contains(&each.input.as_str())).collect();
    if past.is_empty() {
        return Err(Error::unsupported(format!(
            "the decoder has no input {}…: export it with past (a cache of keys and values)",
            decoder.past
        )));
    }
    let is_needed = |input: &&&str| is_first || !input.contains(decoder.fixed.as_str());
    let is_made = |input: &&&str| cached.iter().any(|each| each.input == **input);
    match past.iter().filter(is_needed).find(|input| !is_made(input)) {
        Some(input) => {
            let message = format!("{} reads this, and {} does not output it", step.def.role, half.def.role);
            Err(Error::corrupt(message).in_field(*input))
        }
        None => Ok(cached),
    }
}

/// A cache without rows, for a graph that reads a cache in its first run, too.
///
/// # Errors
/// `Unsupported` for an input without heads and width, or with another type.
pub fn empty_cache(port: &Port) -> Result<Array> {
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
        None | Some(DType::F32) => Array::f32(shape, Vec::new()),
        Some(dtype @ (DType::F16 | DType::BF16)) => Array::new(dtype, shape, Vec::<u16>::new()),
        Some(other) => Err(Error::unsupported(format!("a cache of {other}")).in_field(&port.name)),
    }
}

/// The shape of an input that reads one number: the graph declares a scalar or a list.
pub fn shape_of_one(port: &Port) -> Vec<usize> {
    if port.dims.as_ref().is_some_and(Vec::is_empty) { vec![] } else { vec![1] }
}

/// The last row of logits of the shape `shape`.
///
/// # Errors
/// `Corrupt` for logits without a vocabulary, `Engine` for NaN or infinity.
pub fn last_row<'v>(shape: &[usize], values: &'v [f32]) -> Result<&'v [f32]> {
    let vocabulary = shape.last().copied().filter(|&size| size > 0 && values.len() >= size);
    let vocabulary = vocabulary.ok_or_else(|| Error::corrupt("logits without a vocabulary").in_field(LOGITS))?;
    let row = &values[values.len() - vocabulary..];
    check_numbers(row)?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_has_the_rank_that_the_graph_declares() {
        let port = |dims: Option<Vec<Option<usize>>>| Port { name: "num_logits_to_keep".into(), dtype: None, dims };
        assert_eq!(shape_of_one(&port(Some(vec![]))), [0; 0]);
        assert_eq!(shape_of_one(&port(Some(vec![Some(1)]))), [1]);
        assert_eq!(shape_of_one(&port(None)), [1]);
    }

    #[test]
    fn cache_without_rows_has_the_sizes_of_the_graph() {
        let port = |dims: &[Option<usize>], dtype| Port { name: "past".into(), dtype, dims: Some(dims.to_vec()) };
        let value = empty_cache(&port(&[None, Some(4), None, Some(8)], Some(DType::F16))).unwrap();
        assert_eq!((value.shape(), value.dtype()), (&[1, 4, 0, 8][..], DType::F16));
        assert_eq!(empty_cache(&port(&[Some(1), None, Some(8)], None)).unwrap().shape(), [1, 0, 8]);
        for dims in [&[None, None, None, Some(8)][..], &[None, Some(4), None, None], &[]] {
            assert_eq!(empty_cache(&port(dims, None)).err().unwrap().field(), Some("past"));
        }
        assert!(empty_cache(&port(&[None, Some(4), None, Some(8)], Some(DType::I64))).is_err());
    }

    #[test]
    fn scores_are_those_of_the_last_token() {
        assert_eq!(last_row(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap(), [3.0, 4.0]);
        assert!(last_row(&[1, 0], &[]).is_err() && last_row(&[1, 2], &[f32::NAN, 1.0]).is_err());
    }
}
