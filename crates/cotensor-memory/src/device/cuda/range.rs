//! The memory of a slab, and the ranges of it that have segments.

use super::lendable::RangeOwner;
use super::mapping::Mapping;
use super::opened::Opened;
use crate::ranges::SlabRanges;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a slab and its segments share. Only copies of this module use the writable addresses; published tensors have the others, which are
/// read-only.
pub(super) struct SlabShared {
    // The order in which the fields are dropped: the mappings before the memory that they show.
    pub(super) writable: Mapping,
    pub(super) readable: Arc<Mapping>,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) device: Arc<Opened>,
    pub(super) ranges: SlabRanges,
    pub(super) len: usize,
}

/// A range of a slab that has a segment. Its drop lets the slab use it again.
pub(super) struct TakenRange {
    pub(super) slab: Arc<SlabShared>,
    /// Where it starts in the slab, in bytes.
    pub(super) start: usize,
    pub(super) len: usize,
}

/// A slab from which no range is reserved any more needs nothing.
impl RangeOwner for TakenRange {}

impl Drop for TakenRange {
    fn drop(&mut self) {
        self.slab.ranges.free(self.start, self.len);
    }
}
