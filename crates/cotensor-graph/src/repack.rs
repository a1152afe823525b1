//! What loading makes of stored codes, scales and zero points: the forms that engines multiply.

use std::borrow::Cow;

/// A step from stored bytes to those that an engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repack {
    /// Codes of 4 bits with the same distance from the middle code as codes of `bits` bits, 2 or 3, in groups of `group`.
    Widened {
        /// Bits of a stored code.
        bits: u32,
        /// Elements of a group.
        group: usize,
    },
    /// Codes of 4 bits: the higher halves of codes of 8 bits.
    High,
    /// Codes of 4 bits: their lower halves.
    Low,
    /// A matrix with exchanged rows and columns.
    Turned {
        /// Rows of the stored matrix.
        rows: usize,
        /// Columns of the stored matrix.
        columns: usize,
        /// Bytes of an element.
        width: usize,
    },
    /// A matrix of codes of 4 bits with exchanged rows and columns. Each row ends with a whole byte, those of the stored matrix follow each other.
    TurnedHalves {
        /// Rows of the stored matrix.
        rows: usize,
        /// Columns of the stored matrix.
        columns: usize,
    },
    /// Each element several times.
    Repeated {
        /// Bytes of an element.
        width: usize,
        /// How often it is there.
        times: usize,
    },
    /// Codes of 4 bits as bytes.
    Unpacked {
        /// The number of codes. The last byte may have one.
        count: usize,
    },
    /// Bytes as codes of 4 bits. Each row ends with a whole byte.
    Packed {
        /// The codes of a row.
        columns: usize,
    },
    /// Some bits of each byte inverted, which makes signed codes unsigned.
    Flipped {
        /// The bits.
        mask: u8,
    },
}

impl Repack {
    /// What codes of `bits` bits, 2, 3 or 8, become.
    pub(crate) fn of(bits: u32, group: usize) -> (Self, Option<Self>) {
        match bits {
            8 => (Self::High, Some(Self::Low)),
            _ => (Self::Widened { bits, group }, None),
        }
    }

    /// A part of the name of codes of 4 bits.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Low => "low",
            _ => "of_4_bits",
        }
    }

    /// The bytes that `bytes` stored bytes become.
    pub(crate) fn len(self, bytes: usize) -> usize {
        match self {
            Self::Widened { bits, .. } => bytes / bits as usize * 4,
            Self::High | Self::Low => bytes / 2,
            Self::Turned { .. } | Self::Flipped { .. } => bytes,
            Self::TurnedHalves { rows, columns } => columns * rows.div_ceil(2),
            Self::Repeated { times, .. } => bytes * times,
            Self::Unpacked { count } => count,
            Self::Packed { columns } => bytes / columns * columns.div_ceil(2),
        }
    }

    /// What the steps make of stored bytes, one after the other.
    ///
    /// # Panics
    /// When the length does not fit.
    pub(crate) fn all<'s>(steps: &[Self], stored: &'s [u8]) -> Cow<'s, [u8]> {
        let mut bytes = Cow::Borrowed(stored);
        for step in steps {
            if let (Self::Flipped { mask }, Cow::Owned(own)) = (step, &mut bytes) {
                flip(own, *mask);
                continue;
            }
            let mut next = vec![0; step.len(bytes.len())];
            step.fill(&bytes, &mut next);
            bytes = Cow::Owned(next);
        }
        bytes
    }

    /// Fills `target` with what [`all`](Self::all) gives, without a copy of what the last step gives, and of what steps in place do to it.
    ///
    /// # Panics
    /// When a length does not fit.
    pub(crate) fn fill_all(steps: &[Self], stored: &[u8], target: &mut [u8]) {
        match steps {
            [] => target.copy_from_slice(stored),
            [before @ .., Self::Flipped { mask }] => {
                Self::fill_all(before, stored, target);
                flip(target, *mask);
            }
            [before @ .., last] => last.fill(&Self::all(before, stored), target),
        }
    }

    /// Fills `target` with what this step makes of stored bytes.
    ///
    /// # Panics
    /// When a length does not fit.
    pub(crate) fn fill(self, stored: &[u8], target: &mut [u8]) {
        assert_eq!(target.len(), self.len(stored.len()), "the bytes of {self:?}");
        match self {
            Self::Widened { bits: 2, .. } => widen_pairs(stored, target, 8 - 2),
            Self::Widened { group, .. } => {
                let groups = stored.chunks_exact(group * 3 / 8).zip(target.chunks_exact_mut(group / 2));
                for (stored, target) in groups {
                    let (low, high) = stored.split_at(group / 4);
                    widen_pairs(low, target, 8 - 4);
                    for (bits, four) in high.iter().zip(target.as_chunks_mut::<4>().0) {
                        for (number, byte) in four.iter_mut().enumerate() {
                            let two = bits >> (2 * number) & 3;
                            // Four for each bit; no code passes 15.
                            *byte += (two & 1) * 0x04 + (two >> 1) * 0x40;
                        }
                    }
                }
            }
            Self::High | Self::Low => {
                let shift = if self == Self::High { 4 } else { 0 };
                for (pair, byte) in stored.as_chunks::<2>().0.iter().zip(target) {
                    *byte = (pair[0] >> shift & 15) | (pair[1] >> shift & 15) << 4;
                }
            }
            Self::Turned { rows, columns, width } => turn(stored, target, [rows, columns], width),
            Self::TurnedHalves { rows, columns } => turn_halves(stored, target, [rows, columns]),
            Self::Repeated { width, times } => {
                for (element, copies) in stored.chunks_exact(width).zip(target.chunks_exact_mut(width * times)) {
                    copies.chunks_exact_mut(width).for_each(|copy| copy.copy_from_slice(element));
                }
            }
            Self::Unpacked { .. } => {
                for (byte, pair) in stored.iter().zip(target.chunks_mut(2)) {
                    for (code, shift) in pair.iter_mut().zip([0, 4]) {
                        *code = byte >> shift & 15;
                    }
                }
            }
            Self::Packed { columns } => {
                let rows = stored.chunks_exact(columns).zip(target.chunks_exact_mut(columns.div_ceil(2)));
                for (codes, packed) in rows {
                    for (pair, byte) in codes.chunks(2).zip(packed) {
                        *byte = (pair[0] & 15) | pair.get(1).map_or(0, |code| code << 4);
                    }
                }
            }
            Self::Flipped { mask } => {
                target.copy_from_slice(stored);
                flip(target, mask);
            }
        }
    }
}

/// Four codes of 2 bits in each byte, plus `above`.
fn widen_pairs(stored: &[u8], target: &mut [u8], above: u8) {
    for (byte, two) in stored.iter().zip(target.as_chunks_mut::<2>().0) {
        let code = |shift: u32| (byte >> shift & 3) + above;
        *two = [code(0) | code(2) << 4, code(4) | code(6) << 4];
    }
}

fn flip(bytes: &mut [u8], mask: u8) {
    bytes.iter_mut().for_each(|byte| *byte ^= mask);
}

/// The rows and columns of a block that stays in the cache of the processor.
const BLOCK: usize = 32;

/// Exchanges rows and columns of codes of 4 bits.
fn turn_halves(stored: &[u8], target: &mut [u8], [rows, columns]: [usize; 2]) {
    assert_eq!(stored.len(), (rows * columns).div_ceil(2), "the length of a matrix");
    let code = |at: usize| stored[at / 2] >> (4 * (at % 2)) & 15;
    let of_row = rows.div_ceil(2);
    for first in (0..rows).step_by(BLOCK) {
        for second in (0..columns).step_by(BLOCK) {
            for column in second..columns.min(second + BLOCK) {
                for row in (first..rows.min(first + BLOCK)).step_by(2) {
                    let at = row * columns + column;
                    let next = if row + 1 < rows { code(at + columns) } else { 0 };
                    target[column * of_row + row / 2] = code(at) | next << 4;
                }
            }
        }
    }
}

/// Exchanges rows and columns.
fn turn(stored: &[u8], target: &mut [u8], [rows, columns]: [usize; 2], width: usize) {
    assert_eq!(
        (stored.len(), target.len()),
        (rows * columns * width, rows * columns * width),
        "the length of a matrix"
    );
    for first in (0..rows).step_by(BLOCK) {
        for second in (0..columns).step_by(BLOCK) {
            for row in first..rows.min(first + BLOCK) {
                for column in second..columns.min(second + BLOCK) {
                    let (from, to) = ((row * columns + column) * width, (column * rows + row) * width);
                    target[to..to + width].copy_from_slice(&stored[from..from + width]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_four_bits_are_turned() {
        // Three rows of five codes, without a gap between rows.
        let stored = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0x0e];
        let turned = [Repack::TurnedHalves { rows: 3, columns: 5 }, Repack::Flipped { mask: 0x88 }];
        let columns: [[u8; 3]; 5] = [[0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8, 13], [4, 9, 14]];
        let wanted = columns.iter().flat_map(|[one, two, three]| [(one | two << 4) ^ 0x88, three ^ 0x88]);
        let wanted: Vec<u8> = wanted.collect();
        assert_eq!(Repack::all(&turned, &stored), wanted);
        let mut filled = vec![0; 10];
        Repack::fill_all(&turned, &stored, &mut filled);
        assert_eq!(filled, wanted);
    }

    #[test]
    fn halves_are_turned_as_bytes() {
        let stored: Vec<u8> = (0..(70usize * 33).div_ceil(2)).map(|at| (at * 167 % 256) as u8).collect();
        let by_bytes = [
            Repack::Unpacked { count: 70 * 33 },
            Repack::Turned { rows: 70, columns: 33, width: 1 },
            Repack::Packed { columns: 70 },
        ];
        assert_eq!(
            Repack::all(&[Repack::TurnedHalves { rows: 70, columns: 33 }], &stored),
            Repack::all(&by_bytes, &stored)
        );
    }

    #[test]
    fn elements_are_turned_and_repeated() {
        let steps = [Repack::Turned { rows: 2, columns: 3, width: 2 }, Repack::Repeated { width: 2, times: 2 }];
        let stored: Vec<u8> = (0..12).collect();
        let wanted = [0, 1, 0, 1, 6, 7, 6, 7, 2, 3, 2, 3, 8, 9, 8, 9, 4, 5, 4, 5, 10, 11, 10, 11];
        assert_eq!(*Repack::all(&steps, &stored), wanted);
        let many: Vec<u8> = (0..70 * 33).map(|at| (at % 251) as u8).collect();
        let turned = Repack::all(&[Repack::Turned { rows: 70, columns: 33, width: 1 }], &many);
        assert!((0..70 * 33).all(|at| turned[at % 33 * 70 + at / 33] == many[at]));
    }
}
