//! A quantized matrix.

use crate::expand::expand;
use crate::halves::narrow;
use crate::scales::{GroupScale, Parts, Scales};
use crate::spec::{QuantSpec, SUPER_GROUP, Scheme};
use cotensor_core::{Error, Result};
use rten_simd::f16;
use std::ops::Range;

/// A matrix of codes with their scales. See the crate's documentation for its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantTensor {
    spec: QuantSpec,
    rows: usize,
    columns: usize,
    codes: Vec<u8>,
    scales: Scales,
}

impl QuantTensor {
    /// The number of elements of a matrix.
    ///
    /// # Errors
    /// `Invalid`, with the field, for columns that are not a multiple of [`QuantSpec::columns_unit`], and for more than the machine can address.
    pub(crate) fn count(rows: usize, columns: usize, spec: &QuantSpec) -> Result<usize> {
        let unit = spec.columns_unit();
        if columns == 0 || !columns.is_multiple_of(unit) {
            return Err(
                Error::invalid(format!("{columns} columns; multiples of {unit} are possible")).in_field("columns")
            );
        }
        let too_many = || Error::invalid(format!("{rows} rows of {columns}")).in_field("rows");
        rows.checked_mul(columns).filter(|elements| *elements <= isize::MAX as usize / 8).ok_or_else(too_many)
    }

    /// A matrix with scales of zero. Its memory is allocated: callers have compared the size with that of what they have.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub(crate) fn zeros(rows: usize, columns: usize, spec: &QuantSpec) -> Result<Self> {
        let elements = Self::count(rows, columns, spec)?;
        let groups = elements / spec.group();
        let halves = |count: usize| vec![f16::from_bits(0); count];
        let scales = match spec.scheme() {
            Scheme::Round | Scheme::Search => Scales::Flat { scales: halves(groups), offsets: None },
            Scheme::Affine => Scales::Flat { scales: halves(groups), offsets: Some(halves(groups)) },
            Scheme::TwoLevel => {
                let (kind, supers) = (Parts::of(spec), elements / SUPER_GROUP);
                let minimums = kind.minimums.then(|| halves(supers));
                Scales::TwoLevel { scales: halves(supers), minimums, parts: vec![0; supers * kind.bytes()] }
            }
        };
        let codes = vec![0; spec.width().bytes(elements)];
        Ok(Self { spec: *spec, rows, columns, codes, scales })
    }

    pub(crate) fn parts_mut(&mut self) -> (&mut Vec<u8>, &mut Scales) {
        (&mut self.codes, &mut self.scales)
    }

    pub(crate) fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Width, group and scheme.
    pub fn spec(&self) -> &QuantSpec {
        &self.spec
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns, in elements.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed codes: `[rows, columns / group, width.bytes(group)]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Bytes of the codes and scales.
    pub fn size_bytes(&self) -> usize {
        let scales = match &self.scales {
            Scales::Flat { scales, offsets } => 2 * (scales.len() + offsets.as_ref().map_or(0, Vec::len)),
            Scales::TwoLevel { scales, minimums, parts } => {
                2 * (scales.len() + minimums.as_ref().map_or(0, Vec::len)) + parts.len()
            }
        };
        self.codes.len() + scales
    }

    /// Writes the elements of some rows.
    ///
    /// # Errors
    /// `Invalid`, with the field, for rows that do not exist, and for another length of `out` than their elements.
    pub fn dequantize_into(&self, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        self.check(&rows, out.len())?;
        let mut scales = vec![GroupScale::default(); self.columns / self.spec.group()];
        for (row, out) in rows.zip(out.chunks_exact_mut(self.columns)) {
            self.scales.of_row(&self.spec, row, &mut scales);
            expand(&self.spec, self.codes_of(row), &scales, out);
        }
        Ok(())
    }

    /// Writes the elements of some rows, rounded to float16.
    ///
    /// # Errors
    /// As [`dequantize_into`](Self::dequantize_into).
    pub fn dequantize_f16_into(&self, rows: Range<usize>, out: &mut [f16]) -> Result<()> {
        self.check(&rows, out.len())?;
        let mut scales = vec![GroupScale::default(); self.columns / self.spec.group()];
        let mut values = vec![0.0; self.columns];
        for (row, out) in rows.zip(out.chunks_exact_mut(self.columns)) {
            self.scales.of_row(&self.spec, row, &mut scales);
            expand(&self.spec, self.codes_of(row), &scales, &mut values);
            narrow(&values, out);
        }
        Ok(())
    }

    fn codes_of(&self, row: usize) -> &[u8] {
        let bytes = self.spec.width().bytes(self.columns);
        &self.codes[row * bytes..(row + 1) * bytes]
    }

    fn check(&self, rows: &Range<usize>, len: usize) -> Result<()> {
        if rows.start > rows.end || rows.end > self.rows {
            let message = format!("rows {} to {} of {}", rows.start, rows.end, self.rows);
            return Err(Error::invalid(message).in_field("rows"));
        }
        let wanted = rows.len() * self.columns;
        if len != wanted {
            return Err(Error::invalid(format!("room for {len} elements instead of {wanted}")).in_field("out"));
        }
        Ok(())
    }
}

/// The relative error of a quantized matrix in the L2 norm: `‖weights − tensor‖ / ‖weights‖`. 0 for weights of zero.
///
/// # Errors
/// `Invalid` for another number of weights.
pub fn relative_error(weights: &[f32], tensor: &QuantTensor) -> Result<f64> {
    let elements = tensor.rows() * tensor.columns();
    if weights.len() != elements {
        let message = format!("{} weights for a matrix of {elements}", weights.len());
        return Err(Error::invalid(message).in_field("weights"));
    }
    let (mut wrong, mut all) = (0.0, 0.0);
    let mut found = vec![0.0; tensor.columns()];
    for (row, weights) in weights.chunks_exact(tensor.columns()).enumerate() {
        tensor.dequantize_into(row..row + 1, &mut found)?;
        for (weight, found) in weights.iter().zip(&found) {
            let difference = f64::from(*weight) - f64::from(*found);
            wrong += difference * difference;
            all += f64::from(*weight) * f64::from(*weight);
        }
    }
    Ok(if all == 0.0 { 0.0 } else { (wrong / all).sqrt() })
}
