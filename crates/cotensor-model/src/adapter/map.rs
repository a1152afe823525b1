use cotensor_core::{Error, ErrorKind, Result};
use nalgebra::{DMatrix, DMatrixView, DVector};

/// An affine map of rows: `y = x · weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearMap {
    inputs: usize,
    outputs: usize,
    /// `[inputs, outputs]`, row-major.
    weight: Vec<f32>,
    /// `[outputs]`.
    bias: Vec<f32>,
}

impl LinearMap {
    /// A map of `weight`, `[inputs, outputs]`, and `bias`, `[outputs]`.
    ///
    /// # Errors
    /// `Engine` for a number that is not finite.
    pub(super) fn new(weight: &DMatrix<f64>, bias: &DVector<f64>) -> Result<Self> {
        // nalgebra's matrices are column-major.
        let weight_rows: Vec<f32> = weight.transpose().iter().map(|&value| value as f32).collect();
        let bias_row: Vec<f32> = bias.iter().map(|&value| value as f32).collect();
        Self::from_rows(weight.nrows(), weight.ncols(), weight_rows, bias_row)
    }

    /// A map of row-major elements.
    ///
    /// # Errors
    /// `Invalid` for slices of other sizes, `Engine` for a number that is not finite.
    pub fn from_rows(inputs: usize, outputs: usize, weight: Vec<f32>, bias: Vec<f32>) -> Result<Self> {
        if inputs.checked_mul(outputs) != Some(weight.len()) || bias.len() != outputs || weight.is_empty() {
            let message = format!("{} weights and {} biases for [{inputs}, {outputs}]", weight.len(), bias.len());
            return Err(Error::invalid(message));
        }
        if weight.iter().chain(&bias).any(|value| !value.is_finite()) {
            return Err(Error::new(ErrorKind::Engine, "the map has a number that is not finite"));
        }
        Ok(Self { inputs, outputs, weight, bias })
    }

    /// The number of elements of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of elements of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The weights, `[inputs, outputs]`, row-major.
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// The rows of `x`, `[rows, inputs]`, mapped to `[rows, outputs]`, both row-major.
    ///
    /// # Panics
    /// When `x` is not a number of whole rows.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs, "whole rows");
        // Row-major data is the transposed matrix to nalgebra: yᵀ = weightᵀ · xᵀ + bias.
        let weight = DMatrixView::from_slice(&self.weight, self.outputs, self.inputs);
        let x = DMatrixView::from_slice(x, self.inputs, rows);
        let mut y = DMatrix::from_fn(self.outputs, rows, |output, _| self.bias[output]);
        y.gemm(1.0, &weight, &x, 1.0);
        y.data.into()
    }

    /// `weight`, `[inputs, outputs]`, and `bias`, `[outputs]`.
    pub(super) fn matrices(&self) -> (DMatrix<f64>, DVector<f64>) {
        let weight = self.weight.iter().map(|&value| f64::from(value));
        let weight = DMatrix::from_row_iterator(self.inputs, self.outputs, weight);
        (weight, DVector::from_iterator(self.outputs, self.bias.iter().map(|&value| f64::from(value))))
    }
}
