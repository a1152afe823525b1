//! Segments of a slab.

use super::shared::SlabShared;
use crate::host::parallel_copy::copy_parallel_again;
use crate::mapping::Windows;
use cotensor_core::{Device, MemoryKind, Result, Segment, SegmentMut, range_within};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A range of a slab, freed on drop.
///
/// - **S1**: the ranges of living segments lie inside both mappings and do not overlap, because the free list never
///   returns a byte twice. The mutex of the free list orders the last use of a byte before its next one.
pub(crate) struct SlabSegment {
    pub(super) slab: Arc<SlabShared>,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl SlabSegment {
    /// The windows and the length in bytes of the slab.
    pub(crate) fn windows(&self) -> (&Windows, usize) {
        (&self.slab.windows, self.slab.readable.len())
    }

    fn readable(&self) -> &[u8] {
        // SAFETY: S1: the range is inside the mapping, which `slab` keeps. The bytes are written only through the other
        // mapping and with an exclusive borrow of this segment.
        unsafe { std::slice::from_raw_parts(self.slab.readable.start().as_ptr().add(self.start), self.len) }
    }

    /// The bytes for writing. Only for the process that created the slab.
    pub(super) fn writable(&mut self) -> &mut [u8] {
        // SAFETY: S1: the range is inside the mapping, which `slab` keeps and which was mapped for writing. This
        // segment alone has these bytes, and its exclusive borrow excludes other references to them in this
        // mapping.
        unsafe { std::slice::from_raw_parts_mut(self.slab.writable.start().as_ptr().add(self.start), self.len) }
    }
}

impl Drop for SlabSegment {
    fn drop(&mut self) {
        self.slab.ranges.free(self.start, self.len);
    }
}

impl SegmentMut for SlabSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.readable())
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.slab.ranges.check_owner().ok()?;
        Some(self.writable())
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        self.slab.ranges.check_owner()?;
        let range = range_within(offset, source.len(), self.len)?;
        copy_parallel_again(&mut self.writable()[range], source);
        Ok(())
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(Arc::from(self as Box<dyn Segment>))
    }
}

impl Segment for SlabSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.readable())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.slab.fd.as_fd())
    }

    fn fd_offset(&self) -> usize {
        self.start
    }
}
