//! Fits codes and scales to weights.

mod compensated;
mod flat;
mod refined;
mod two_level;

use crate::inputs::InputFactor;
use crate::lanes::vectorized;
use crate::scales::F16_MAX;
use crate::spec::{QuantSpec, Scheme, Width};
use crate::tensor::QuantTensor;
use cotensor_core::{Error, Result};

/// Quantizes a matrix of `rows × columns` weights, row by row. Magnitudes below about 10⁻⁷ become zero.
///
/// # Errors
/// `Invalid`, with the field, if `weights` has another length, if the columns are not a multiple of [`QuantSpec::columns_unit`], and for a weight
/// that is not finite or beyond 65504, the largest float16.
pub fn quantize(weights: &[f32], rows: usize, columns: usize, spec: &QuantSpec) -> Result<QuantTensor> {
    let mut tensor = QuantTensor::zeros(rows, columns, spec)?;
    check_count(weights, rows, columns)?;
    let wrong = of_any_width(weights, &mut tensor);
    let Some(at) = wrong else { return Ok(tensor) };
    Err(impossible(weights, at, columns))
}

/// As [`quantize`], with codes whose errors compensate each other in products with inputs that have the moments of `factor`.
///
/// # Errors
/// As [`quantize`]; `Invalid` for inputs of another size, and for `TwoLevel`.
pub fn quantize_for(
    weights: &[f32],
    rows: usize,
    columns: usize,
    spec: &QuantSpec,
    factor: &InputFactor,
) -> Result<QuantTensor> {
    if spec.scheme() == Scheme::TwoLevel {
        return Err(Error::invalid("two_level takes no inputs").in_field("scheme"));
    }
    if factor.columns() != columns {
        let message = format!("inputs of {} for {columns} columns", factor.columns());
        return Err(Error::invalid(message).in_field("inputs"));
    }
    let mut tensor = QuantTensor::zeros(rows, columns, spec)?;
    check_count(weights, rows, columns)?;
    if let Some(at) = weights.iter().position(is_wrong) {
        return Err(impossible(weights, at, columns));
    }
    compensated::quantize(weights, &mut tensor, factor);
    Ok(tensor)
}

fn check_count(weights: &[f32], rows: usize, columns: usize) -> Result<()> {
    if weights.len() == rows * columns {
        return Ok(());
    }
    let message = format!("{} weights for {rows} rows of {columns}", weights.len());
    Err(Error::invalid(message).in_field("weights"))
}

fn impossible(weights: &[f32], at: usize, columns: usize) -> Error {
    let (row, column) = (at / columns, at % columns);
    let message = format!("row {row}, column {column} is {}; finite numbers up to {F16_MAX} are possible", weights[at]);
    Error::invalid(message).in_field("weights")
}

/// Quantizes row by row. Returns the first weight that is not possible.
fn of_any_width(weights: &[f32], tensor: &mut QuantTensor) -> Option<usize> {
    match tensor.spec().width() {
        Width::Two => of_width::<2>(weights, tensor),
        Width::Three => of_width::<3>(weights, tensor),
        Width::Four => of_width::<4>(weights, tensor),
        Width::Eight => of_width::<8>(weights, tensor),
    }
}

/// Whether a weight is not possible. Without a branch, for loops over many.
#[inline(always)]
fn is_wrong(weight: &f32) -> bool {
    weight.is_nan() | (weight.abs() > F16_MAX)
}

/// Quantizes row by row, with loops that know the width when they are compiled. Returns the first weight that is not possible.
#[expect(clippy::redundant_closure, reason = "a closure can be inlined by force, a function that is passed on cannot")]
fn of_width<const BITS: u32>(weights: &[f32], tensor: &mut QuantTensor) -> Option<usize> {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            let (scheme, columns) = (tensor.spec().scheme(), tensor.columns());
            let mut lines = flat::RowLines::new(columns / tensor.spec().group());
            for (row, values) in weights.chunks_exact(columns).enumerate() {
                if values.iter().fold(false, |wrong, weight| wrong | is_wrong(weight)) {
                    let column = values.iter().position(is_wrong)?;
                    return Some(row * columns + column);
                }
                let lines = &mut lines;
                match scheme {
                    // The others became slower when they were compiled for the instructions of the processor.
                    Scheme::Round => flat::quantize(
                        width,
                        row,
                        values,
                        tensor,
                        lines,
                        #[inline(always)]
                        |width, values| flat::rounded(width, values),
                    ),
                    Scheme::Search => flat::quantize(width, row, values, tensor, lines, flat::search),
                    Scheme::Affine => flat::quantize(width, row, values, tensor, lines, flat::affine),
                    Scheme::TwoLevel => two_level::quantize(width, row, values, tensor),
                }
            }
            None
        },
    )
}
