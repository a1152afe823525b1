//! The content of a page.

use cotensor_core::ContentHash;

/// Size of a page; other page sizes are not supported.
pub(super) const PAGE_BYTES: usize = 4096;

/// The content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Only zeros.
    Zero,
    /// A content that the sample leaves out.
    NotSampled,
    /// The hash of any other content.
    Hash(u64),
}

impl Content {
    /// Classifies a page. One of `sample` contents is sampled. The choice depends on the content only, so that all
    /// copies of a content are sampled or none.
    pub(super) fn of(page: &[u8], sample: u32) -> Self {
        if page.iter().all(|&byte| byte == 0) {
            return Self::Zero;
        }
        if sample > 1 && !mix(page).is_multiple_of(u64::from(sample)) {
            return Self::NotSampled;
        }
        Self::Hash(first_word(ContentHash::of(page)))
    }
}

pub(super) fn first_word(hash: ContentHash) -> u64 {
    hash.as_bytes().first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// A cheap hash of a few words of a page.
fn mix(page: &[u8]) -> u64 {
    let words = page.chunks_exact(PAGE_BYTES / 16).filter_map(<[u8]>::first_chunk);
    let mixed = words.fold(0u64, |mixed, word| {
        (mixed.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_keeps_copies_together_and_the_requested_share() {
        let pages: Vec<Vec<u8>> = (0..4000u32)
            .map(|number| {
                (0..PAGE_BYTES / 4)
                    .flat_map(|word| (number ^ word as u32).wrapping_mul(2_654_435_761).to_le_bytes())
                    .collect()
            })
            .collect();
        let taken = pages.iter().filter(|page| matches!(Content::of(page, 8), Content::Hash(_))).count();
        assert!((300..700).contains(&taken), "{taken} of 4000");
        for page in &pages[..100] {
            assert_eq!(Content::of(page, 8), Content::of(&page.clone(), 8));
            assert_ne!(Content::of(page, 1), Content::NotSampled);
        }
        assert_eq!(Content::of(&[0; PAGE_BYTES], 1), Content::Zero);
        assert_ne!(Content::of(&pages[0], 1), Content::of(&pages[1], 1));
    }
}
