//! Slabs: one allocation for many small tensors of one producer.

use super::mapping::Mapping;
use super::opened::Opened;
use super::range::{SlabShared, TakenRange};
use super::segment::{CudaSegment, CudaSegmentMut};
use crate::ranges::SlabRanges;
use cotensor_core::{Device, Error, Memory, MemoryKind, Result, Segment, SegmentMut, SlabMemory, range_within};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Tensors in a slab start at multiples of this many bytes, as DLPack demands of arrays on CUDA devices.
pub(super) const ALIGNMENT: usize = 256;

/// A slab.
pub(super) struct CudaSlab(Arc<SlabShared>);

/// A range that its producer writes.
pub(super) struct RangeMut(TakenRange);

/// The device and the address of memory that its producer writes, once other code that has the address is done with it. None for memory
/// that is not of CUDA.
///
/// # Errors
/// As [`Lendable::wait_for_users`].
pub(super) fn target_of(segment: &mut dyn SegmentMut) -> Result<Option<(i32, u64)>> {
    let Some(segment) = segment.as_any_mut() else { return Ok(None) };
    if let Some(own) = segment.downcast_ref::<CudaSegmentMut>() {
        own.mapping.wait_for_users()?;
        return Ok(Some((own.device.ordinal, own.mapping.mapping().address())));
    }
    let address =
        |RangeMut(range): &RangeMut| (range.slab.device.ordinal, range.slab.writable.address() + range.start as u64);
    Ok(segment.downcast_ref::<RangeMut>().map(address))
}

impl CudaSlab {
    /// A slab of `len` bytes of zeros, which its process has mapped for writing and for reading.
    pub(super) fn new(device: Arc<Opened>, writable: Mapping, readable: Mapping, fd: OwnedFd, len: usize) -> Self {
        let (readable, fd, ranges) = (Arc::new(readable), Arc::new(fd), SlabRanges::new(len, ALIGNMENT));
        Self(Arc::new(SlabShared { writable, readable, fd, device, ranges, len }))
    }

    /// A range of `len` bytes, and how many of the first ones an earlier tensor may have written.
    fn allocate(&self, len: usize) -> Result<(RangeMut, usize)> {
        let (start, stale) = self.0.ranges.allocate(len)?;
        Ok((RangeMut(TakenRange { slab: Arc::clone(&self.0), start, len }), stale))
    }
}

impl Memory for CudaSlab {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        self.0.device.device.device()
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (segment, stale) = self.allocate(len)?;
        if stale > 0 {
            self.0.device.context()?.clear(&self.0.writable, segment.0.start, stale)?;
        }
        Ok(Box::new(segment))
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let (mut segment, _) = self.allocate(source.len())?;
        segment.write_at(0, source)?;
        Ok(Box::new(segment))
    }
}

impl SlabMemory for CudaSlab {
    fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(self.allocate(len)?.0))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    fn size_bytes(&self) -> usize {
        self.0.len
    }

    fn is_unused(&self) -> bool {
        self.0.ranges.is_unused()
    }
}

impl SegmentMut for RangeMut {
    fn len(&self) -> usize {
        self.0.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn device_address(&self) -> Result<u64> {
        let advice =
            "a small tensor shares memory that its producer can write; reserve it aliased to write it by address";
        Err(Error::unsupported(advice))
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let TakenRange { slab, start, len } = &self.0;
        let range = range_within(offset, source.len(), *len)?;
        slab.ranges.check_owner()?;
        if source.is_empty() {
            return Ok(());
        }
        slab.device.context()?.write(&slab.writable, start + range.start, source)
    }

    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let Self(range) = *self;
        let (slab, bytes) = (Arc::clone(&range.slab), range.start..range.start + range.len);
        Ok(Arc::new(CudaSegment::of_range(&slab.readable, &slab.fd, &slab.device, bytes, Box::new(range))))
    }
}
