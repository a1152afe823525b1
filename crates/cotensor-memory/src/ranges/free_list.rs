//! The free ranges of a slab.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free ranges, of which no two are adjacent. Allocation is best fit: freed ranges are reused before unused ones, and
/// long ranges stay long.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Length by start.
    by_start: BTreeMap<usize, usize>,
    /// The same ranges as (length, start).
    by_len: BTreeSet<(usize, usize)>,
}

impl FreeList {
    /// A list with the range `0 .. len`.
    pub(crate) fn new(len: usize) -> Self {
        let mut list = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        list.insert(0, len);
        list
    }

    /// Allocates `len` bytes; `None` when no free range is long enough.
    pub(crate) fn allocate(&mut self, len: usize) -> Option<Range<usize>> {
        if len == 0 {
            return Some(0..0);
        }
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        self.insert(start + len, found - len);
        Some(start..start + len)
    }

    /// Frees an allocated range.
    pub(crate) fn free(&mut self, range: Range<usize>) {
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

    /// The number of free bytes, over all ranges.
    pub(crate) fn free_bytes(&self) -> usize {
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
    fn adjacent_freed_ranges_merge() {
        let mut list = FreeList::new(300);
        let ranges: Vec<_> = (0..3).map(|_| list.allocate(100).unwrap()).collect();
        assert_eq!((list.allocate(1), list.free_bytes()), (None, 0));
        for at in [0, 2, 1] {
            list.free(ranges[at].clone());
        }
        assert_eq!(list.allocate(300), Some(0..300));
    }

    proptest! {
        /// Compares with a table of single bytes.
        #[test]
        fn no_byte_is_allocated_twice_or_lost(steps in proptest::collection::vec((0usize..90, any::<bool>(), any::<prop::sample::Index>()), 1..80)) {
            const LEN: usize = 200;
            let mut list = FreeList::new(LEN);
            let mut allocated: Vec<Range<usize>> = Vec::new();
            for (len, back, which) in steps {
                if back && !allocated.is_empty() {
                    list.free(allocated.swap_remove(which.index(allocated.len())));
                } else {
                    let mut used = [false; LEN];
                    allocated.iter().for_each(|range| used[range.clone()].fill(true));
                    let longest = used.split(|&used| used).map(<[bool]>::len).max().unwrap_or(0);
                    let range = list.allocate(len);
                    prop_assert_eq!(range.is_some(), len <= longest);
                    if let Some(range) = range {
                        prop_assert!(range.len() == len && used[range.clone()].iter().all(|&used| !used));
                        allocated.push(range);
                    }
                }
                prop_assert_eq!(list.free_bytes() + allocated.iter().map(Range::len).sum::<usize>(), LEN);
            }
        }
    }
}
