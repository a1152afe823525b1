//! Fits codes and scales to weights.

mod flat;
mod two_level;

use crate::lanes::vectorized;
use crate::spec::{QuantSpec, Scheme, Width};
use crate::tensor::QuantTensor;
use cotensor_core::{Error, Result};

/// Quantizes a matrix of `rows × columns` weights, row by row. Magnitudes below about 10⁻⁷ become zero.
///
/// # Errors
/// `Invalid`, with the field, if `weights` has another length, if the columns are no multiple of [`QuantSpec::columns_unit`], and for a weight
/// that is not finite or beyond 65504, the largest float16.
pub fn quantize(weights: &[f32], rows: usize, columns: usize, spec: &QuantSpec) -> Result<QuantTensor> {
    let mut tensor = QuantTensor::zeros(rows, columns, spec)?;
    if weights.len() != rows * columns {
        let message = format!("{} weights for {rows} rows of {columns}", weights.len());
        return Err(Error::invalid(message).in_field("weights"));
    }
    vectorized(
        #[inline(always)]
        || check(weights),
    )
    .map_err(|at| {
        let (row, column) = (at / columns, at % columns);
        let message = format!("row {row}, column {column} is {}; finite numbers up to {MAX} are possible", weights[at]);
        Error::invalid(message).in_field("weights")
    })?;
    match spec.width() {
        Width::Two => of_width::<2>(weights, &mut tensor),
        Width::Three => of_width::<3>(weights, &mut tensor),
        Width::Four => of_width::<4>(weights, &mut tensor),
        Width::Eight => of_width::<8>(weights, &mut tensor),
    }
    Ok(tensor)
}

/// The largest float16.
const MAX: f32 = 65_504.0;

/// The first weight that is not possible is the error.
#[inline(always)]
fn check(weights: &[f32]) -> Result<(), usize> {
    let is_wrong = |weight: &f32| weight.is_nan() || weight.abs() > MAX;
    for (number, part) in weights.chunks(1024).enumerate() {
        // All of a part, without a branch for each.
        let wrong = part.iter().fold(false, |wrong, weight| wrong | weight.is_nan() | (weight.abs() > MAX));
        if wrong && let Some(at) = part.iter().position(is_wrong) {
            return Err(number * 1024 + at);
        }
    }
    Ok(())
}

/// Loops for one width, which they know when they are compiled.
fn of_width<const BITS: u32>(weights: &[f32], tensor: &mut QuantTensor) {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            match tensor.spec().scheme() {
                Scheme::Round => flat::quantize(width, weights, tensor, flat::rounded),
                Scheme::Search => flat::quantize(width, weights, tensor, flat::search),
                Scheme::Affine => flat::quantize(width, weights, tensor, flat::affine),
                Scheme::TwoLevel => two_level::quantize(width, weights, tensor),
            }
        },
    );
}
