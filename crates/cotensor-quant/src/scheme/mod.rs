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
    check_count(weights, rows, columns, spec)?;
    let mut tensor = QuantTensor::zeros(rows, columns, spec)?;
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
    check_count(weights, rows, columns, spec)?;
    let mut tensor = QuantTensor::zeros(rows, columns, spec)?;
    if let Some(at) = weights.iter().position(is_wrong) {
        return Err(impossible(weights, at, columns));
    }
    compensated::quantize(weights, &mut tensor, factor);
    Ok(tensor)
}

fn check_count(weights: &[f32], rows: usize, columns: usize, spec: &QuantSpec) -> Result<()> {
    if weights.len() == QuantTensor::count(rows, columns, spec)? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::InputMoments;

    const ROWS: usize = 3;
    const COLUMNS: usize = 512;

    /// Numbers of a seeded sequence, in -1..1, each exact in `float32` on every machine.
    fn numbers(count: usize, mut state: u32) -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Loops are compiled for the instructions of the processor, and the tests run on several architectures: all have these codes and scales.
    #[test]
    fn codes_are_equal_on_all_processors() {
        let mut weights = numbers(ROWS * COLUMNS, 1);
        // Outliers, a group of zeros and small numbers.
        weights[7] = 40.0;
        weights[64..128].fill(0.0);
        weights[512..768].iter_mut().for_each(|weight| *weight *= 1e-3);
        let mut moments = InputMoments::new(COLUMNS);
        moments.add(&numbers(64 * COLUMNS, 2));
        let factor = moments.factor().unwrap();
        let mut found = Vec::new();
        for width in Width::ALL {
            for scheme in Scheme::ALL {
                let group = if scheme == Scheme::TwoLevel { 0 } else { 32 };
                let Ok(spec) = QuantSpec::new(width, group, scheme) else { continue };
                let hash = quantize(&weights, ROWS, COLUMNS, &spec).unwrap().hash().to_string();
                found.push((width.bits(), scheme.name(), hash[..16].to_owned()));
                if matches!(scheme, Scheme::Search | Scheme::Affine) {
                    let fitted = quantize_for(&weights, ROWS, COLUMNS, &spec, &factor).unwrap();
                    found.push((width.bits(), "fitted", fitted.hash().to_string()[..16].to_owned()));
                }
            }
        }
        let wanted: Vec<(u32, &str, String)> =
            HASHES.iter().map(|(bits, name, hash)| (*bits, *name, (*hash).to_owned())).collect();
        assert_eq!(found, wanted);
    }

    /// Bits, scheme and the first digits of the hash; "fitted" has the inputs of the scheme before it.
    const HASHES: [(u32, &str, &str); 23] = [
        (2, "round", "9506549448d4a10c"),
        (2, "search", "8013b025ee250995"),
        (2, "fitted", "243d3254443a4fb7"),
        (2, "affine", "345ca553670899b0"),
        (2, "fitted", "c86b6be9ddc0b11c"),
        (2, "two_level", "03ffae8ae23e997a"),
        (3, "round", "435ce40f73c304af"),
        (3, "search", "6c085ad8a11a7407"),
        (3, "fitted", "8ad07e601b339981"),
        (3, "affine", "07d649c8c0f26905"),
        (3, "fitted", "704201dc5e155db5"),
        (3, "two_level", "ac03382dd374077e"),
        (4, "round", "04eb94d96d193dc9"),
        (4, "search", "110d6e41ebc55dee"),
        (4, "fitted", "b09251c178e60098"),
        (4, "affine", "e747d61c9e0c9920"),
        (4, "fitted", "f163e139a0e97dba"),
        (4, "two_level", "45e4588800e222f4"),
        (8, "round", "f7cd17dc080cb111"),
        (8, "search", "4236dbd4b40781a2"),
        (8, "fitted", "ec06650fe4cd1cea"),
        (8, "affine", "241433c3c4ce8b1a"),
        (8, "fitted", "2732cef0f4348eb7"),
    ];
}
