//! Linear layers in the layout of GPTQ checkpoints, as
//! [AutoGPTQ](https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py) and
//! [GPTQModel](https://github.com/ModelCloud/GPTQModel) write them.

use super::{RepackedMatrix, check_length, elements, offsets_of, word};
use crate::spec::Width;
use cotensor_core::{Error, Result};

/// The codes that `width` words have.
const CHUNK: usize = 32;

/// The tensors of a linear layer. Words are 32 bits, little-endian; codes are streams of bits in words, lowest bits first, so that a code
/// of 3 bits may lie in two words.
#[derive(Clone, Copy, Debug)]
pub struct GptqLinear<'a> {
    /// The width of codes and zero points.
    pub width: Width,
    /// The rows of the matrix: the outputs of the layer.
    pub rows: usize,
    /// The columns of the matrix: the inputs of the layer.
    pub columns: usize,
    /// Columns that share a scale.
    pub group: usize,
    /// The words `[columns · bits / 32, rows]` of `qweight`: a stream of codes for each row.
    pub codes: &'a [u8],
    /// The words `[groups, rows · bits / 32]` of `qzeros`: a stream of zero points for each group.
    pub zeros: &'a [u8],
    /// The numbers `[groups, rows]` of `scales`.
    pub scales: &'a [f32],
    /// Whether the file has zero points less 1: the format `gptq`, not `gptq_v2`.
    pub is_less_one: bool,
}

impl GptqLinear<'_> {
    /// The matrix of these tensors. Its elements `(code − zero) · scale` are exact for scales of 16 binary digits or fewer.
    ///
    /// # Errors
    /// `Corrupt`, with the tensor as the field, for another length; `Unsupported` for columns or rows that do not fill words, for groups that are not
    /// a multiple of 16, for scales whose elements would be rounded, and for the highest zero point less 1, which programs read as 0 or as
    /// 2^bits.
    pub fn matrix(&self) -> Result<RepackedMatrix> {
        let (rows, columns, bits) = (self.rows, self.columns, self.width.bits() as usize);
        let count = elements([rows, columns])?;
        if !columns.is_multiple_of(CHUNK) || !(rows * bits).is_multiple_of(32) {
            let message = format!("{rows} rows of {columns}, whose codes do not fill words of 32 bits");
            return Err(Error::unsupported(message).in_field("qweight"));
        }
        let own = super::own_group(columns, self.group);
        own.map_err(|error| Error::unsupported(error.message()).in_field("group_size"))?;
        let groups = columns / self.group;
        check_length("qweight", self.codes.len(), count / 8 * bits)?;
        check_length("qzeros", self.zeros.len(), groups * rows / 8 * bits)?;
        check_length("scales", self.scales.len(), groups * rows)?;
        let mut codes = vec![0; count];
        let mut words = [0; 8];
        for chunk in 0..columns / CHUNK {
            for row in 0..rows {
                for (number, into) in words[..bits].iter_mut().enumerate() {
                    *into = word(self.codes, (chunk * bits + number) * rows + row);
                }
                unpack(bits, &words, &mut codes[row * columns + chunk * CHUNK..][..CHUNK]);
            }
        }
        let (mut zeros, mut scales) = (vec![0; groups * rows], vec![0.0; groups * rows]);
        for group in 0..groups {
            for row in 0..rows {
                let zero = zero_at(bits, self.zeros, group * rows * bits / 32, row);
                if self.is_less_one && zero == u16::from(self.width.code_max()) {
                    let message =
                        format!("row {row}, group {group}: {zero} less 1, which programs read as 0 or as {}", zero + 1);
                    return Err(Error::unsupported(message).in_field("qzeros"));
                }
                zeros[row * groups + group] = zero + u16::from(self.is_less_one);
                scales[row * groups + group] = self.scales[group * rows + row];
            }
        }
        let offsets = offsets_of(self.width, &zeros, &scales)?;
        RepackedMatrix::of(self.width, [rows, columns], self.group, &codes, scales, offsets)
    }
}

/// The codes of a chunk.
fn unpack(bits: usize, words: &[u32; 8], codes: &mut [u8]) {
    for (at, code) in codes.iter_mut().enumerate() {
        let (number, shift) = (at * bits / 32, at * bits % 32);
        let next = words.get(number + 1).copied().unwrap_or_default();
        let both = u64::from(words[number]) | u64::from(next) << 32;
        *code = (both >> shift) as u8 & ((1u16 << bits) - 1) as u8;
    }
}

/// The code number `at` of a stream that starts at a word.
fn zero_at(bits: usize, zeros: &[u8], start: usize, at: usize) -> u16 {
    let (number, shift) = (start + at * bits / 32, at * bits % 32);
    let next = if shift + bits > 32 { word(zeros, number + 1) } else { 0 };
    let both = u64::from(word(zeros, number)) | u64::from(next) << 32;
    (both >> shift) as u16 & ((1 << bits) - 1)
}
