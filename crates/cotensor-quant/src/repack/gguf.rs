//! Blocks of GGUF files. Their layout is that of `ggml-quants.h` and `ggml-common.h` of
//! [ggml](https://github.com/ggml-org/ggml); the package `gguf` of the same authors has it as Python, and its results are the truth of our tests.

use super::{RepackedMatrix, check_length, elements};
use crate::spec::Width;
use cotensor_core::elements::f16;
use cotensor_core::{Error, Result};

/// A type of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufBlocks {
    /// 32 codes of 4 bits and a `float16` scale.
    Q4_0,
    /// 32 codes of 8 bits with a sign and a `float16` scale.
    Q8_0,
    /// 256 codes of 4 bits; 8 groups with a scale and a minimum, which are 6-bit multiples of two `float16`.
    Q4K,
    /// 256 codes of 6 bits; 16 groups with a scale that is an 8-bit multiple of a `float16`.
    Q6K,
}

impl GgufBlocks {
    /// Elements and bytes of a block.
    const fn block(self) -> (usize, usize) {
        match self {
            Self::Q4_0 => (32, 18),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Width and group of the repacked matrix. Codes of 6 bits become codes of 8.
    const fn own(self) -> (Width, usize) {
        match self {
            Self::Q4_0 | Self::Q4K => (Width::Four, 32),
            Self::Q8_0 => (Width::Eight, 32),
            Self::Q6K => (Width::Eight, 16),
        }
    }

    /// The matrix of these blocks, row by row. Elements are exact, but those of `Q4K`, whose offset `8 · scale − minimum` is rounded to
    /// `float32` once.
    ///
    /// # Errors
    /// `Corrupt`, with the field, for columns that are not whole blocks, another number of bytes, and scales that are not finite.
    pub fn matrix(self, rows: usize, columns: usize, bytes: &[u8]) -> Result<RepackedMatrix> {
        let (of_block, block_bytes) = self.block();
        let count = elements([rows, columns])?;
        if !columns.is_multiple_of(of_block) {
            return Err(
                Error::corrupt(format!("{columns} columns; multiples of {of_block} are possible")).in_field("columns")
            );
        }
        let blocks = count / of_block;
        let wanted = blocks.checked_mul(block_bytes);
        check_length("data", bytes.len(), wanted.unwrap_or(usize::MAX))?;
        let (width, group) = self.own();
        let mut codes = vec![0; count];
        let mut scales = Vec::with_capacity(count / group);
        let mut offsets = Vec::new();
        for (block, codes) in bytes.chunks_exact(block_bytes).zip(codes.chunks_exact_mut(of_block)) {
            match self {
                Self::Q4_0 => q4_0(block, codes, &mut scales),
                Self::Q8_0 => q8_0(block, codes, &mut scales),
                Self::Q4K => q4_k(block, codes, &mut scales, &mut offsets),
                Self::Q6K => q6_k(block, codes, &mut scales),
            }
        }
        let offsets = (self == Self::Q4K).then_some(offsets);
        RepackedMatrix::of(width, [rows, columns], group, &codes, scales, offsets)
    }
}

/// The `float16` at a place of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The lower halves of bytes are the first codes, the upper halves the others.
fn halves(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

fn q4_0(block: &[u8], codes: &mut [u8], scales: &mut Vec<f32>) {
    scales.push(half(block, 0));
    halves(&block[2..], codes);
}

fn q8_0(block: &[u8], codes: &mut [u8], scales: &mut Vec<f32>) {
    scales.push(half(block, 0));
    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
        *code = byte ^ 0x80;
    }
}

fn q4_k(block: &[u8], codes: &mut [u8], scales: &mut Vec<f32>, offsets: &mut Vec<f32>) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    let parts = &block[4..16];
    for group in 0..8 {
        // Of the first four groups, 6 bits in a byte. Of the others, 4 bits in a byte and 2 at the top of those of the first four.
        let (of_scale, of_minimum) = match group {
            0..4 => (parts[group] & 63, parts[group + 4] & 63),
            _ => {
                let low = parts[group + 4];
                (low & 15 | parts[group - 4] >> 6 << 4, low >> 4 | parts[group] >> 6 << 4)
            }
        };
        // Both products are exact: 11 and 6 binary digits.
        let (scale, minimum) = (scale * f32::from(of_scale), minimum * f32::from(of_minimum));
        scales.push(scale);
        offsets.push((8.0 * f64::from(scale) - f64::from(minimum)) as f32);
    }
    for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        halves(bytes, codes);
    }
}

fn q6_k(block: &[u8], codes: &mut [u8], scales: &mut Vec<f32>) {
    let (low, high, multiples) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(block, 208);
    scales.extend(multiples.iter().map(|multiple| scale * f32::from(*multiple as i8)));
    for (part, codes) in codes.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&low[part * 64..(part + 1) * 64], &high[part * 32..(part + 1) * 32]);
        for (at, code) in codes.iter_mut().enumerate() {
            let low = if at < 64 { low[at] & 15 } else { low[at - 64] >> 4 };
            let high = high[at % 32] >> (at / 32 * 2) & 3;
            // The middle is 32 of 6 bits and 128 of 8.
            *code = (low | high << 4) + 96;
        }
    }
}
