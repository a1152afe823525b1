//! Codes of 4 bits that loading makes of stored codes with another number of bits.

/// Which codes of 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repack {
    /// Codes of `bits` bits, 2 or 3, in groups of `group`: with the same distance from the middle code.
    Widened {
        /// Bits of a stored code.
        bits: u32,
        /// Elements of a group.
        group: usize,
    },
    /// The higher halves of codes of 8 bits.
    High,
    /// Their lower halves.
    Low,
}

impl Repack {
    /// What codes of `bits` bits, 2, 3 or 8, become.
    pub(crate) fn of(bits: u32, group: usize) -> (Self, Option<Self>) {
        match bits {
            8 => (Self::High, Some(Self::Low)),
            _ => (Self::Widened { bits, group }, None),
        }
    }

    /// A part of the name of the new tensor.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Widened { .. } => "of_4_bits",
            Self::High => "high",
            Self::Low => "low",
        }
    }

    /// The bytes that `bytes` stored bytes become.
    pub(crate) fn len(self, bytes: usize) -> usize {
        match self {
            Self::Widened { bits, .. } => bytes / bits as usize * 4,
            Self::High | Self::Low => bytes / 2,
        }
    }

    /// Fills `target` with the codes.
    ///
    /// # Panics
    /// When the lengths do not fit.
    pub(crate) fn fill(self, stored: &[u8], target: &mut [u8]) {
        assert_eq!(self.len(stored.len()), target.len(), "the length of the codes");
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
