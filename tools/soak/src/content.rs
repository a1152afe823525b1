//! Test contents with a checksum: a reader can verify that all bytes come from one write.

/// Minimum length: every content includes its number.
pub(crate) const BYTES_MIN: usize = 8;

fn word(number: u64, index: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03);
    mixed ^ (mixed >> 29)
}

/// Fills `target`, of at least [`BYTES_MIN`] bytes, with content `number`.
pub(crate) fn fill(target: &mut [u8], number: u64) {
    let (first, rest) = target.split_at_mut(BYTES_MIN);
    first.copy_from_slice(&number.to_le_bytes());
    for (index, chunk) in rest.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(number, index as u64).to_le_bytes()[..chunk.len()]);
    }
}

/// Whether `bytes` are one whole content.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first_chunk::<BYTES_MIN>() else { return false };
    let number = u64::from_le_bytes(*first);
    let right = |(index, chunk): (usize, &[u8])| *chunk == word(number, index as u64).to_le_bytes()[..chunk.len()];
    rest.chunks(8).enumerate().all(right)
}

/// A deterministic random number generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lowest bits of the state are not random enough.
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// A number below `end`, which must be nonzero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True with probability `of` / `among`.
    pub(crate) fn chance(&mut self, of: usize, among: usize) -> bool {
        self.below(among) < of
    }

    /// A log-uniform number from `from` to below `to`.
    pub(crate) fn magnitude(&mut self, from: usize, to: usize) -> usize {
        let share = self.below(1 << 20) as f64 / f64::from(1 << 20);
        ((from as f64) * (to as f64 / from as f64).powf(share)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_recognized_and_changes_are_detected() {
        for bytes in [8, 9, 100, 4096] {
            let mut content = vec![0; bytes];
            fill(&mut content, 7);
            assert!(is_whole(&content));
            for at in [0, 8, bytes / 2, bytes - 1].into_iter().filter(|&at| bytes > 8 && at < bytes) {
                content[at] ^= 1;
                assert!(!is_whole(&content), "byte {at} of {bytes}");
                content[at] ^= 1;
            }
        }
        assert!(!is_whole(&[0; 7]));
    }

    #[test]
    fn random_numbers_are_reproducible_and_in_range() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.magnitude(10, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        let small = numbers(1).into_iter().inspect(|number| assert!((10..1000).contains(number)));
        let small = small.filter(|&number| number < 100).count();
        assert!((400..600).contains(&small), "{small}: as many below 100 as above");
    }
}
