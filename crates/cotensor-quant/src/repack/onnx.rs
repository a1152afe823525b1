//! Products by codes in the layout of the operator `MatMulNBits` of
//! [onnxruntime](https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits).

use super::{RepackedMatrix, check_length, elements, offsets_of, own_group};
use crate::codes::unpack;
use crate::spec::Width;
use cotensor_core::{Error, Result};

/// The tensors of a product with codes of 2, 4 or 8 bits, lowest bits first.
#[derive(Clone, Copy, Debug)]
pub struct OnnxProduct<'a> {
    /// The width of codes and zero points: not 3 bits.
    pub width: Width,
    /// The rows of the matrix: the outputs of the product.
    pub rows: usize,
    /// The columns of the matrix.
    pub columns: usize,
    /// Columns that share a scale.
    pub group: usize,
    /// The codes `[rows, groups, group · bits / 8]`.
    pub codes: &'a [u8],
    /// The zero points `[rows, bytes]`, where a row ends with a whole byte; without these, they are the middle code.
    pub zeros: Option<&'a [u8]>,
    /// The numbers `[rows, groups]` of scales.
    pub scales: &'a [f32],
}

impl OnnxProduct<'_> {
    /// The matrix of these tensors. Beside zero points, its elements `(code − zero) · scale` are exact for scales of 16 binary digits or fewer.
    ///
    /// # Errors
    /// `Corrupt`, with the tensor as the field, for another length; `Unsupported` for 3 bits, for columns that are not whole groups, for groups
    /// that are not a multiple of 16, and for scales whose elements would be rounded.
    pub fn matrix(&self) -> Result<RepackedMatrix> {
        let Self { width, rows, columns, group, .. } = *self;
        if width == Width::Three {
            return Err(Error::unsupported("products of 3 bits").in_field("bits"));
        }
        let count = elements([rows, columns])?;
        own_group(columns, group).map_err(|error| Error::unsupported(error.message()).in_field("block_size"))?;
        let groups = columns / group;
        let in_byte = 8 / width.bits() as usize;
        let of_row = groups.div_ceil(in_byte);
        check_length("codes", self.codes.len(), width.bytes(count))?;
        check_length("scales", self.scales.len(), rows * groups)?;
        let mut codes = vec![0; count];
        unpack(width, self.codes, &mut codes);
        let offsets = match self.zeros {
            None => None,
            Some(packed) => {
                check_length("zero_points", packed.len(), rows * of_row)?;
                let mut zeros = vec![0; rows * of_row * in_byte];
                unpack(width, packed, &mut zeros);
                let of_rows = zeros.chunks_exact(of_row * in_byte).flat_map(|row| &row[..groups]);
                let zeros: Vec<u16> = of_rows.map(|zero| u16::from(*zero)).collect();
                offsets_of(width, &zeros, self.scales)?
            }
        };
        RepackedMatrix::of(width, [rows, columns], group, &codes, self.scales.to_vec(), offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_zero_points_are_those_of_the_product() {
        // One row of three groups of 16: the last byte of zero points has one.
        let codes: Vec<u8> = (0..24).map(|at| (at * 37 % 256) as u8).collect();
        let (zeros, scales) = ([0x73, 0xf8], [0.5, -0.25, 2.0]);
        let product = OnnxProduct {
            width: Width::Four,
            rows: 1,
            columns: 48,
            group: 16,
            codes: &codes,
            zeros: Some(&zeros),
            scales: &scales,
        };
        let matrix = product.matrix().unwrap();
        let mut found = vec![0.0; 48];
        matrix.dequantize_row(0, &mut found);
        for (at, value) in found.into_iter().enumerate() {
            let (code, zero) = (codes[at / 2] >> (4 * (at % 2)) & 15, [3.0, 7.0, 8.0][at / 16]);
            assert_eq!(value, (f32::from(code) - zero) * scales[at / 16], "{at}");
        }
        let field = |product: OnnxProduct<'_>| product.matrix().unwrap_err().field().map(str::to_owned).unwrap();
        assert_eq!(field(OnnxProduct { codes: &codes[1..], ..product }), "codes");
        assert_eq!(field(OnnxProduct { zeros: Some(&zeros[1..]), ..product }), "zero_points");
        assert_eq!(field(OnnxProduct { scales: &scales[1..], ..product }), "scales");
        assert_eq!(field(OnnxProduct { scales: &[0.1, 0.5, 0.5], ..product }), "scales");
        assert_eq!(field(OnnxProduct { group: 24, ..product }), "block_size");
        assert_eq!(field(OnnxProduct { width: Width::Three, ..product }), "bits");
        assert_eq!(field(OnnxProduct { rows: usize::MAX, ..product }), "rows");
        assert!(OnnxProduct { zeros: None, scales: &[0.1, 0.5, 0.5], ..product }.matrix().is_ok());
    }
}
