//! Linear layers in the layout `gemm` of AWQ checkpoints, as
//! [AutoAWQ](https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py) writes them.

use super::{RepackedMatrix, check_length, elements, offsets_of, own_group, word};
use crate::spec::Width;
use cotensor_core::{Error, Result};

/// The row, of the 8 that share a word, of each code of the word, lowest bits first.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The tensors of a linear layer with codes of 4 bits. Words are 32 bits, little-endian, and have codes of 8 rows.
#[derive(Clone, Copy, Debug)]
pub struct AwqLinear<'a> {
    /// The rows of the matrix: the outputs of the layer.
    pub rows: usize,
    /// The columns of the matrix: the inputs of the layer.
    pub columns: usize,
    /// Columns that share a scale.
    pub group: usize,
    /// The words `[columns, rows / 8]` of `qweight`.
    pub codes: &'a [u8],
    /// The words `[groups, rows / 8]` of `qzeros`.
    pub zeros: &'a [u8],
    /// The numbers `[groups, rows]` of `scales`.
    pub scales: &'a [f32],
}

impl AwqLinear<'_> {
    /// The matrix of these tensors. Its elements `(code − zero) · scale` are exact for scales of 16 binary digits or fewer.
    ///
    /// # Errors
    /// `Corrupt`, with the tensor as the field, for another length; `Unsupported` for rows that are not a multiple of 8, for groups that are not
    /// a multiple of 16, and for scales whose elements would be rounded.
    pub fn matrix(&self) -> Result<RepackedMatrix> {
        let (rows, columns) = (self.rows, self.columns);
        let count = elements([rows, columns])?;
        if !rows.is_multiple_of(8) {
            return Err(Error::unsupported(format!("{rows} rows, whose codes do not fill words")).in_field("qweight"));
        }
        own_group(columns, self.group).map_err(|error| Error::unsupported(error.message()).in_field("group_size"))?;
        let (groups, words) = (columns / self.group, rows / 8);
        check_length("qweight", self.codes.len(), count / 2)?;
        check_length("qzeros", self.zeros.len(), groups * rows / 2)?;
        check_length("scales", self.scales.len(), groups * rows)?;
        let mut codes = vec![0; count];
        let (mut zeros, mut scales) = (vec![0; groups * rows], vec![0.0; groups * rows]);
        for number in 0..words {
            for column in 0..columns {
                let packed = word(self.codes, column * words + number);
                for (at, row) in ORDER.into_iter().enumerate() {
                    codes[(number * 8 + row) * columns + column] = (packed >> (4 * at)) as u8 & 15;
                }
            }
            for group in 0..groups {
                let packed = word(self.zeros, group * words + number);
                for (at, row) in ORDER.into_iter().enumerate() {
                    let row = number * 8 + row;
                    zeros[row * groups + group] = (packed >> (4 * at)) as u16 & 15;
                    scales[row * groups + group] = self.scales[group * rows + row];
                }
            }
        }
        let offsets = offsets_of(Width::Four, &zeros, &scales)?;
        RepackedMatrix::of(Width::Four, [rows, columns], self.group, &codes, scales, offsets)
    }
}
