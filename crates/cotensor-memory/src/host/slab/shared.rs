//! What a slab and its segments share.

use crate::mapping::{Mapping, Windows};
use crate::ranges::SlabRanges;
use std::os::fd::OwnedFd;

pub(super) struct SlabShared {
    /// Only for filling segments; forked children do not inherit it.
    pub(super) writable: Mapping,
    pub(super) readable: Mapping,
    pub(super) fd: OwnedFd,
    /// Those of segments. A forked child has the same pages, and not the writable mapping.
    pub(super) ranges: SlabRanges,
    /// The private mappings of readers in this process.
    pub(super) windows: Windows,
}
