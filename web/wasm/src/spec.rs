//! Descriptions of tensors, from JavaScript and to it.

use cotensor_core::{ContentHash, Error, Layout, Result, Slice, Space};
use cotensor_store::{Lease, Retention, TensorSpec};
use serde::Serialize;
use std::time::Duration;
use wasm_bindgen::prelude::*;

/// 2^53: the integers below it are exact in JavaScript.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

#[wasm_bindgen]
extern "C" {
    /// The object `ReservationRequest` of `web/src/core.ts`.
    pub type Request;

    #[wasm_bindgen(method, getter)]
    fn name(this: &Request) -> String;
    #[wasm_bindgen(method, getter)]
    fn dtype(this: &Request) -> String;
    #[wasm_bindgen(method, getter)]
    fn shape(this: &Request) -> Vec<f64>;
    #[wasm_bindgen(method, getter)]
    fn device(this: &Request) -> String;
    #[wasm_bindgen(method, getter)]
    fn kind(this: &Request) -> String;
    #[wasm_bindgen(method, getter)]
    fn producer(this: &Request) -> String;
    /// 64 hexadecimal digits, as `provenance`.
    #[wasm_bindgen(method, getter)]
    fn space(this: &Request) -> Option<String>;
    #[wasm_bindgen(method, getter)]
    fn provenance(this: &Request) -> Option<String>;
    #[wasm_bindgen(method, getter)]
    fn metadata(this: &Request) -> Option<String>;
    /// Milliseconds; none for a tensor that is freed with its last lease.
    #[wasm_bindgen(method, getter)]
    fn recompute(this: &Request) -> Option<f64>;
    /// Whether no other holder finds the tensor.
    #[wasm_bindgen(method, getter)]
    pub(crate) fn private(this: &Request) -> bool;
}

/// The description that `request` has.
///
/// # Errors
/// `Invalid` with the field, for an unknown name and for a number that no tensor has.
pub(crate) fn spec(request: &Request) -> Result<TensorSpec> {
    let shape = integers(&request.shape(), "shape")?;
    let dtype = request.dtype().parse().map_err(|error: Error| error.in_field("dtype"))?;
    let mut spec = TensorSpec::new(request.name(), dtype, &shape);
    spec.device = request.device().parse().map_err(|error: Error| error.in_field("device"))?;
    spec.kind = request.kind().parse().map_err(|error: Error| error.in_field("kind"))?;
    spec.producer = request.producer();
    spec.space = hash(request.space(), "space")?.map(Space);
    spec.provenance = hash(request.provenance(), "provenance")?;
    spec.metadata = request.metadata().map(Into::into);
    if let Some(milliseconds) = request.recompute() {
        spec.retention = Retention::Cached { recompute: recompute(milliseconds)? };
    }
    Ok(spec)
}

/// The time of a field `recompute`.
///
/// # Errors
/// `Invalid` for a negative number and for no number.
pub(crate) fn recompute(milliseconds: f64) -> Result<Duration> {
    let wrong = |_| Error::invalid("a time in milliseconds, 0 or more, is required").in_field("recompute");
    Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(wrong)
}

fn hash(digits: Option<String>, field: &str) -> Result<Option<ContentHash>> {
    let read = |digits: String| {
        let hash = ContentHash::from_hex(&digits);
        hash.ok_or_else(|| Error::invalid("a hash of 64 hexadecimal digits is required").in_field(field))
    };
    digits.map(read).transpose()
}

/// One slice for each dimension.
///
/// # Errors
/// `Invalid` for lists of different lengths, and for numbers that are not sizes.
pub(crate) fn slices(starts: &[f64], lens: &[f64], steps: &[f64]) -> Result<Vec<Slice>> {
    if starts.len() != lens.len() || starts.len() != steps.len() {
        let message = format!("{} offsets, {} sizes and {} steps", starts.len(), lens.len(), steps.len());
        return Err(Error::invalid(message).in_field("view"));
    }
    let (starts, lens) = (integers(starts, "offset")?, integers(lens, "size")?);
    let steps = integers(steps, "step")?;
    let each = starts.into_iter().zip(lens).zip(steps);
    Ok(each.map(|((start, len), step)| Slice { start, len, step }).collect())
}

/// `value` as a number of bytes; infinity means no limit.
///
/// # Errors
/// `Invalid` for a negative number, a fraction and no number.
pub(crate) fn bytes(value: f64, field: &str) -> Result<u64> {
    match value {
        f64::INFINITY => Ok(u64::MAX),
        _ if (0.0..INTEGER_MAX).contains(&value) && value.fract() == 0.0 => Ok(value as u64),
        _ => Err(Error::invalid(format!("{value} is not a number of bytes")).in_field(field)),
    }
}

fn integers(values: &[f64], field: &str) -> Result<Vec<usize>> {
    let each = values.iter().map(|&value| {
        let integer = bytes(value, field).ok().and_then(|value| usize::try_from(value).ok());
        integer.ok_or_else(|| Error::invalid(format!("{value} is not an integer from 0 to 2^32")).in_field(field))
    });
    each.collect()
}

/// What TypeScript reads of a tensor or view.
#[derive(Serialize)]
pub(crate) struct Description<'a> {
    name: &'a str,
    version: u64,
    kind: &'static str,
    producer: &'a str,
    space: Option<String>,
    provenance: Option<String>,
    metadata: Option<&'a str>,
    dtype: &'static str,
    shape: &'a [usize],
    /// In elements.
    strides: &'a [usize],
    offset_bytes: usize,
    /// From the first element to the end of the last, gaps included.
    span_bytes: usize,
    element_bytes: usize,
    contiguous: bool,
}

impl<'a> Description<'a> {
    pub(crate) fn new(lease: &'a Lease, layout: &'a Layout) -> Self {
        Self {
            name: lease.name(),
            version: lease.id().version,
            kind: lease.kind().name(),
            producer: lease.producer(),
            space: lease.space().map(|space| space.0.to_string()),
            provenance: lease.provenance().map(|hash| hash.to_string()),
            metadata: lease.metadata(),
            dtype: layout.dtype().name(),
            shape: layout.shape(),
            strides: layout.strides(),
            offset_bytes: layout.offset_bytes(),
            span_bytes: layout.byte_range().len(),
            element_bytes: layout.dtype().size_bytes(),
            contiguous: layout.is_contiguous(),
        }
    }
}
