//! The ranges of a slab that its producer gives to segments.

use super::free_list::FreeList;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result, padded};
use std::sync::Mutex;

/// Which ranges of a slab have no segment. No byte has two segments, and no two segments start at one offset, not even empty ones.
pub(crate) struct SlabRanges {
    /// The process that created the slab. A forked child has a copy of the list, so it would allocate ranges that the parent allocates too.
    pub(crate) owner: u32,
    /// Bytes of the slab.
    len: usize,
    /// The unit of ranges: a multiple of [`ALIGNMENT`](cotensor_core::ALIGNMENT).
    alignment: usize,
    state: Mutex<State>,
}

struct State {
    free: FreeList,
    /// The bytes from here on have never been allocated, so they are zero.
    high_water: usize,
}

impl SlabRanges {
    /// The ranges of a slab of `len` bytes whose segments start at multiples of `alignment`. A shorter rest at the end is not used.
    pub(crate) fn new(len: usize, alignment: usize) -> Self {
        let state = State { free: FreeList::new(len - len % alignment), high_water: 0 };
        Self { owner: std::process::id(), len, alignment, state: Mutex::new(state) }
    }

    /// # Errors
    /// `Conflict` in a forked child.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Conflict, "this slab belongs to the process that this one was forked from"))
        }
    }

    /// The start of `len` bytes, and how many of the first ones an earlier segment may have written.
    ///
    /// # Errors
    /// `OverBudget` when no free range is long enough, `Conflict` in a forked child.
    pub(crate) fn allocate(&self, len: usize) -> Result<(usize, usize)> {
        let allocated = padded(len.max(1))?.next_multiple_of(self.alignment);
        self.check_owner()?;
        let mut state = lock(&self.state);
        let range = state.free.allocate(allocated).ok_or_else(|| {
            let (total, free) = (self.len, state.free.free_bytes());
            let message = format!("a slab of {total} bytes has {free} free, but no {len} in one piece");
            Error::new(ErrorKind::OverBudget, message)
        })?;
        let stale = state.high_water.saturating_sub(range.start).min(len);
        state.high_water = state.high_water.max(range.end);
        Ok((range.start, stale))
    }

    /// Frees the `len` bytes that were allocated at `start`.
    pub(crate) fn free(&self, start: usize, len: usize) {
        let allocated = start..start + len.max(1).next_multiple_of(self.alignment);
        lock(&self.state).free.free(allocated);
    }

    /// The number of free bytes, over all free ranges.
    pub(crate) fn free_bytes(&self) -> usize {
        lock(&self.state).free.free_bytes()
    }

    /// Whether no segment has a range.
    pub(crate) fn is_unused(&self) -> bool {
        self.free_bytes() == self.len - self.len % self.alignment
    }
}
