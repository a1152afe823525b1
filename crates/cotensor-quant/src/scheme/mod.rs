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
    let wrong = match spec.width() {
        Width::Two => of_width::<2>(weights, &mut tensor),
        Width::Three => of_width::<3>(weights, &mut tensor),
        Width::Four => of_width::<4>(weights, &mut tensor),
        Width::Eight => of_width::<8>(weights, &mut tensor),
    };
    let Some(at) = wrong else { return Ok(tensor) };
    let (row, column) = (at / columns, at % columns);
    let message = format!("row {row}, column {column} is {}; finite numbers up to {MAX} are possible", weights[at]);
    Err(Error::invalid(message).in_field("weights"))
}

/// The largest float16.
const MAX: f32 = 65_504.0;

/// Whether a weight is not possible. Without a branch, for loops over many.
#[inline(always)]
fn is_wrong(weight: &f32) -> bool {
    weight.is_nan() | (weight.abs() > MAX)
}

/// Quantizes row by row, with loops that know the width when they are compiled. Returns the first weight that is not possible.
fn of_width<const BITS: u32>(weights: &[f32], tensor: &mut QuantTensor) -> Option<usize> {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            let (scheme, columns) = (tensor.spec().scheme(), tensor.columns());
            for (row, values) in weights.chunks_exact(columns).enumerate() {
                if values.iter().fold(false, |wrong, weight| wrong | is_wrong(weight)) {
                    let column = values.iter().position(is_wrong)?;
                    return Some(row * columns + column);
                }
                match scheme {
                    Scheme::Round => flat::quantize(width, row, values, tensor, flat::rounded),
                    Scheme::Search => flat::quantize(width, row, values, tensor, flat::search),
                    Scheme::Affine => flat::quantize(width, row, values, tensor, flat::affine),
                    Scheme::TwoLevel => two_level::quantize(width, row, values, tensor),
                }
            }
            None
        },
    )
}
