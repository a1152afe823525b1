//! Which ranges of a slab are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free ranges, never touching one another. Best fit: what was returned is taken again before what was never used, and
/// large holes stay large.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Start to length.
    by_start: BTreeMap<usize, usize>,
    /// The same as length and start.
    by_len: BTreeSet<(usize, usize)>,
}

impl FreeList {
    /// All of `0 .. len`.
    pub(crate) fn new(len: usize) -> Self {
        let mut free = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        free.insert(0, len);
        free
    }

    /// Takes `len` bytes, or nothing when no free range is that long.
    pub(crate) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        if len == 0 {
            return Some(0..0);
        }
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        self.insert(start + len, found - len);
        Some(start..start + len)
    }

    /// Returns what was taken.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        let (mut start, mut len) = (range.start, range.len());
        if len == 0 {
            return;
        }
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back()
            && before + before_len == start
        {
            self.remove(before, before_len);
            (start, len) = (before, before_len + len);
        }
        if let Some(&after_len) = self.by_start.get(&(start + len)) {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.insert(start, len);
    }

    /// How many bytes are free, in however many ranges.
    pub(crate) fn bytes(&self) -> usize {
        self.by_start.values().sum()
    }

    fn insert(&mut self, start: usize, len: usize) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn returned_ranges_join() {
        let mut free = FreeList::new(300);
        let ranges: Vec<_> = (0..3).map(|_| free.take(100).unwrap()).collect();
        assert_eq!((free.take(1), free.bytes()), (None, 0));
        for at in [0, 2, 1] {
            free.give_back(ranges[at].clone());
        }
        assert_eq!(free.take(300), Some(0..300));
    }

    proptest! {
        /// Against a map of single bytes.
        #[test]
        fn no_byte_is_taken_twice_or_lost(steps in proptest::collection::vec((0usize..90, any::<bool>(), any::<prop::sample::Index>()), 1..80)) {
            const LEN: usize = 200;
            let mut free = FreeList::new(LEN);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (len, back, which) in steps {
                if back && !taken.is_empty() {
                    free.give_back(taken.swap_remove(which.index(taken.len())));
                } else {
                    let mut used = [false; LEN];
                    taken.iter().for_each(|range| used[range.clone()].fill(true));
                    let longest = used.split(|&used| used).map(<[bool]>::len).max().unwrap_or(0);
                    let range = free.take(len);
                    prop_assert_eq!(range.is_some(), len <= longest);
                    if let Some(range) = range {
                        prop_assert!(range.len() == len && used[range.clone()].iter().all(|&used| !used));
                        taken.push(range);
                    }
                }
                prop_assert_eq!(free.bytes() + taken.iter().map(Range::len).sum::<usize>(), LEN);
            }
        }
    }
}
