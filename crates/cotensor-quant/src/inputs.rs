//! What a matrix is multiplied by: the second moments of its inputs, by which errors of weights count.

use crate::hadamard::rotate;
use crate::lanes::{sums, vectorized};
use crate::tensor::QuantTensor;
use cotensor_core::{Error, Result};

/// The share of the mean of the diagonal that is added to it: directions that no input had count a little, too.
const DAMPING: f64 = 0.01;

/// Sums of products of the elements of inputs: `xᵀx` over all rows `x`.
#[derive(Clone, Debug)]
pub struct InputMoments {
    columns: usize,
    rows: usize,
    /// Row-major; the part above the diagonal is not used.
    sums: Vec<f32>,
}

impl InputMoments {
    /// Of no inputs with `columns` elements.
    ///
    /// # Panics
    /// For no columns, and for more than can be addressed.
    pub fn new(columns: usize) -> Self {
        assert!(columns > 0, "inputs have elements");
        Self { columns, rows: 0, sums: vec![0.0; columns * columns] }
    }

    /// The number of inputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The elements of an input.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Adds inputs, row by row. Those with an element that is not finite do not count.
    ///
    /// # Panics
    /// When `inputs` has a part of a row.
    pub fn add(&mut self, inputs: &[f32]) {
        assert!(inputs.len().is_multiple_of(self.columns), "whole rows of {}", self.columns);
        let rows: Vec<&[f32]> =
            inputs.chunks_exact(self.columns).filter(|row| row.iter().all(|element| element.is_finite())).collect();
        self.rows += rows.len();
        vectorized(
            #[inline(always)]
            || {
                // Several rows at a time: the sums are read and written once for all of them.
                for part in rows.chunks(4) {
                    for (at, sums) in self.sums.chunks_exact_mut(self.columns).enumerate() {
                        let factors: [f32; 4] = std::array::from_fn(|row| part.get(row).map_or(0.0, |row| row[at]));
                        let [first, second, third, fourth] = std::array::from_fn(|row| part[row.min(part.len() - 1)]);
                        for column in 0..=at {
                            sums[column] += (factors[0] * first[column] + factors[1] * second[column])
                                + (factors[2] * third[column] + factors[3] * fourth[column]);
                        }
                    }
                }
            },
        );
    }

    /// Whether all inputs were zeros, or there were none.
    pub fn is_zero(&self) -> bool {
        (0..self.columns).all(|at| self.at(at, at) == 0.0)
    }

    /// Those of the same inputs after a [rotation](crate::rotate) of each.
    ///
    /// # Errors
    /// As [`rotate`](crate::rotate), for the columns.
    pub fn rotated(&self, block: usize) -> Result<Self> {
        let size = self.columns;
        if !size.is_multiple_of(block.max(1)) {
            return Err(Error::invalid(format!("{size} columns for blocks of {block}")).in_field("block"));
        }
        let mut sums: Vec<f32> = (0..size * size).map(|at| self.at(at / size, at % size) as f32).collect();
        // The rows, and then the columns: the moments are symmetric.
        for _ in 0..2 {
            rotate(&mut sums, block)?;
            for row in 0..size {
                for column in 0..row {
                    sums.swap(row * size + column, column * size + row);
                }
            }
        }
        Ok(Self { sums, ..*self })
    }

    fn at(&self, one: usize, other: usize) -> f64 {
        let (row, column) = if one >= other { (one, other) } else { (other, one) };
        f64::from(self.sums[row * self.columns + column])
    }

    /// A factor of the moments, for [`quantize_for`](crate::quantize_for).
    ///
    /// # Errors
    /// `Invalid` without an input that is not zero, and for inputs whose squares have no finite sum.
    pub fn factor(&self) -> Result<InputFactor> {
        let size = self.columns;
        let mean = (0..size).map(|at| self.at(at, at)).sum::<f64>() / size as f64;
        if mean <= 0.0 || !mean.is_finite() {
            return Err(Error::invalid("no inputs, zeros only, or squares without a finite sum").in_field("inputs"));
        }
        // The triangle L of LLᵀ, row by row.
        let mut lower = vec![0.0f64; size * size];
        vectorized(
            #[inline(always)]
            || {
                for row in 0..size {
                    let (done, rest) = lower.split_at_mut(row * size);
                    let current = &mut rest[..size];
                    for column in 0..=row {
                        let product = if column == row {
                            dot(&current[..column], &current[..column])
                        } else {
                            dot(&current[..column], &done[column * size..column * size + column])
                        };
                        let rest = self.at(row, column) + if row == column { DAMPING * mean } else { 0.0 } - product;
                        current[column] = if column == row {
                            // Rounding may leave less than what was added.
                            rest.max(DAMPING * mean * 1e-3).sqrt()
                        } else {
                            rest / done[column * size + column]
                        };
                    }
                }
            },
        );
        let upper = (0..size * size).map(|at| lower[at % size * size + at / size] as f32).collect();
        let moments = |at: usize| {
            let (row, column) = (at / size, at % size);
            (self.at(row, column) + if row == column { DAMPING * mean } else { 0.0 }) as f32
        };
        Ok(InputFactor { columns: size, upper, moments: (0..size * size).map(moments).collect() })
    }

    /// The relative error of a product's result in the L2 norm, over all inputs: `‖x(weights − tensor)ᵀ‖ / ‖x · weightsᵀ‖`. 0 for a
    /// result of zeros.
    ///
    /// # Errors
    /// `Invalid` for weights or a tensor of another size.
    pub fn relative_error(&self, weights: &[f32], tensor: &QuantTensor) -> Result<f64> {
        let columns = self.columns;
        if tensor.columns() != columns || weights.len() != tensor.rows() * columns {
            let message = format!("{} weights and {} columns for inputs of {columns}", weights.len(), tensor.columns());
            return Err(Error::invalid(message).in_field("weights"));
        }
        let (mut wrong, mut all) = (0.0, 0.0);
        let mut found = vec![0.0; columns];
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            tensor.dequantize_into(row..row + 1, &mut found)?;
            for (found, weight) in found.iter_mut().zip(weights) {
                *found = weight - *found;
            }
            wrong += self.square(&found);
            all += self.square(weights);
        }
        Ok(if all <= 0.0 { 0.0 } else { (wrong.max(0.0) / all).sqrt() })
    }

    /// `v · moments · vᵀ`.
    fn square(&self, vector: &[f32]) -> f64 {
        vectorized(
            #[inline(always)]
            || {
                let rows = self.sums.chunks_exact(self.columns).zip(vector).enumerate();
                rows.map(|(at, (moments, element))| {
                    let below: f64 = dot_f32(&moments[..at], &vector[..at]);
                    f64::from(*element) * (2.0 * below + f64::from(*element) * f64::from(moments[at]))
                })
                .sum()
            },
        )
    }
}

/// A triangle whose product with its transposition is the moments of inputs.
#[derive(Clone, Debug)]
pub struct InputFactor {
    columns: usize,
    /// Row-major; the part below the diagonal is zero.
    upper: Vec<f32>,
    /// The moments, row-major.
    moments: Vec<f32>,
}

impl InputFactor {
    /// The elements of an input.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row `at` of the moments.
    #[inline(always)]
    pub(crate) fn moments(&self, at: usize) -> &[f32] {
        &self.moments[at * self.columns..(at + 1) * self.columns]
    }

    /// Row `at` of the triangle, whose first elements are zero.
    #[inline(always)]
    pub(crate) fn row(&self, at: usize) -> &[f32] {
        &self.upper[at * self.columns..(at + 1) * self.columns]
    }
}

/// Partial results of a sum of `f64`, so that all processors add in one order.
const WIDE_LANES: usize = 8;

#[inline(always)]
fn dot(one: &[f64], other: &[f64]) -> f64 {
    let (first, second) = (one.as_chunks::<WIDE_LANES>(), other.as_chunks::<WIDE_LANES>());
    let mut partial = [0.0; WIDE_LANES];
    for (one, other) in first.0.iter().zip(second.0) {
        for lane in 0..WIDE_LANES {
            partial[lane] += one[lane] * other[lane];
        }
    }
    let rest: f64 = first.1.iter().zip(second.1).map(|(one, other)| one * other).sum();
    partial.iter().sum::<f64>() + rest
}

#[inline(always)]
fn dot_f32(one: &[f32], other: &[f32]) -> f64 {
    let whole = one.len() / crate::lanes::LANES * crate::lanes::LANES;
    let [sum] = sums(
        whole,
        #[inline(always)]
        |at| [one[at] * other[at]],
    );
    let rest: f64 = one[whole..].iter().zip(&other[whole..]).map(|(one, other)| f64::from(one * other)).sum();
    f64::from(sum) + rest
}
