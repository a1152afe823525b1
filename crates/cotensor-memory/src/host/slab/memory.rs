//! The slab as a memory that reserves segments.

use super::segment::SlabSegment;
use super::shared::SlabShared;
use crate::host::memfd::{Guarantee, allocate, seal};
use crate::host::parallel_copy::copy_parallel_again;
use crate::mapping::{Access, Mapping, OnFork, Windows};
use crate::ranges::SlabRanges;
use cotensor_core::{ALIGNMENT, Device, Memory, MemoryKind, Result, SegmentMut, SlabMemory};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A memfd that only this process can write. It is sealed after this process has mapped it, so a process that receives
/// the descriptor can only read it, with [`SealedMemfd::open`](crate::SealedMemfd::open) and
/// [`Guarantee::ProducerOnly`].
///
/// The slab has two mappings: a writable one to fill segments, and a read-only one to read them. Forked children
/// inherit only the read-only one.
///
/// A freed range is reused, with its pages still present. The publisher of a segment therefore keeps it until every
/// lease on it, in any process, is released. Two living segments never start at the same offset, not even empty ones,
/// so the offset identifies a segment.
///
/// Clones are the same slab, which lives until its last segment is dropped.
#[derive(Clone)]
pub struct Slab {
    pub(super) shared: Arc<SlabShared>,
}

impl Slab {
    /// Creates a slab of `len` bytes, all of them backed by memory.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `OverBudget` when the system's memory or this process's descriptors do
    /// not suffice, `Io`.
    pub fn create(len: usize) -> Result<Self> {
        let (fd, writable) = allocate(len, OnFork::Exclude)?;
        seal(&fd, Guarantee::ProducerOnly)?;
        let readable = Mapping::new(fd.as_fd(), len, Access::Read)?;
        let ranges = SlabRanges::new(len, ALIGNMENT);
        let shared = SlabShared { writable, readable, fd, ranges, windows: Windows::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Faults in every page, so that the first use of a range is as fast as later ones.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    pub fn prefault(&self) -> Result<()> {
        self.shared.writable.prefault()
    }

    /// As [`reserve`](Memory::reserve), but the bytes may have values of an earlier segment. For callers that write all
    /// of them.
    ///
    /// # Errors
    /// As [`reserve`](Memory::reserve).
    pub fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(self.allocate(len)?.0))
    }

    /// The descriptor for other processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.shared.writable.len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of free bytes, over all free ranges.
    pub fn free_bytes(&self) -> usize {
        self.shared.ranges.free_bytes()
    }

    /// Whether no segment lies in it.
    pub fn is_unused(&self) -> bool {
        self.shared.ranges.is_unused()
    }

    /// A segment of `len` bytes, and how many of its first bytes an earlier segment may have written.
    pub(super) fn allocate(&self, len: usize) -> Result<(SlabSegment, usize)> {
        let (start, stale) = self.shared.ranges.allocate(len)?;
        Ok((SlabSegment { slab: Arc::clone(&self.shared), start, len }, stale))
    }
}

impl Memory for Slab {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    /// # Errors
    /// `OverBudget` when no free range is long enough, `Conflict` in a forked child.
    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (mut segment, stale) = self.allocate(len)?;
        segment.writable()[..stale].fill(0);
        Ok(Box::new(segment))
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let (mut segment, _) = self.allocate(source.len())?;
        copy_parallel_again(segment.writable(), source);
        Ok(Box::new(segment))
    }
}

impl SlabMemory for Slab {
    fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Slab::reserve_unzeroed(self, len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        Slab::fd(self)
    }

    fn size_bytes(&self) -> usize {
        self.len()
    }

    fn is_unused(&self) -> bool {
        Slab::is_unused(self)
    }
}
