//! The free ranges of a slab: of host memory, and of a device.

mod free_list;
mod slab_ranges;

pub(crate) use slab_ranges::SlabRanges;
