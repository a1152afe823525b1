//! One memfd for many small tensors of one producer.

use super::free_list::FreeList;
use crate::host::memfd::{Guarantee, allocate, seal};
use crate::host::parallel_copy::copy_parallel;
use crate::mapping::{Access, Mapping, MappingCache};
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, padded, range_within};
use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A memfd that this process writes and nobody else can: it is sealed once this process has mapped it, so a process that
/// receives the descriptor can only read it (with [`SealedMemfd::open`](crate::SealedMemfd::open) and
/// [`Guarantee::ProducerOnly`]).
///
/// The slab has two mappings. The writable one is used only to fill a part; a part is read through the second one, which is
/// read-only. Forked children inherit the second mapping alone.
///
/// A range that is given back is used again, still warm. So whoever publishes one keeps its segment until every lease
/// on it, in whatever process, is gone. No two segments begin at one place, those of no bytes included: where a segment begins
/// says which it is. Clones are the same slab, which lives until the last of its segments goes.
#[derive(Clone)]
pub struct Slab {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    writable: Mapping,
    readable: Mapping,
    fd: OwnedFd,
    /// A forked child has the same pages and a copy of the state: it would hand out what its parent hands out.
    pub(super) owner: u32,
    state: Mutex<State>,
    mapping_cache: Arc<MappingCache>,
}

struct State {
    free: FreeList,
    /// From here on nothing was ever handed out, so all is zero.
    used_end: usize,
}

impl Slab {
    /// A slab of `len` bytes, all of them backed by memory.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `Io` when the system has no more memory.
    pub fn create(len: usize) -> Result<Self> {
        let (fd, writable) = allocate(len, false)?;
        seal(&fd, Guarantee::ProducerOnly)?;
        let readable = Mapping::new(fd.as_fd(), len, Access::Read)?;
        // Ranges are multiples of the alignment: what is left over at the end is not used.
        let state = State { free: FreeList::new(len - len % cotensor_core::ALIGNMENT), used_end: 0 };
        Ok(Self {
            inner: Arc::new(Inner {
                writable,
                readable,
                fd,
                owner: std::process::id(),
                state: Mutex::new(state),
                mapping_cache: Arc::default(),
            }),
        })
    }

    /// Makes every page present in this process, so that the first use of a range is as fast as the next.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    pub fn prefault(&self) -> Result<()> {
        self.inner.writable.populate()
    }

    /// As [`reserve`](Memory::reserve), without zeroing what was used before: for who writes all of it.
    ///
    /// # Errors
    /// As [`reserve`](Memory::reserve).
    pub fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(self.take(len)?.0))
    }

    /// The descriptor for other processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.inner.writable.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes are free, in however many pieces.
    pub fn free_bytes(&self) -> usize {
        self.inner.state().free.bytes()
    }

    /// A range, and how many of its first bytes were used before.
    pub(super) fn take(&self, len: usize) -> Result<(SlabSegment, usize)> {
        let taken = padded(len.max(1))?;
        self.inner.check_owner()?;
        let mut state = self.inner.state();
        let range = state.free.take(taken).ok_or_else(|| {
            let (all, free) = (self.len(), state.free.bytes());
            Error::new(ErrorKind::OverBudget, format!("a slab of {all} bytes, {free} free, has no {len} in one piece"))
        })?;
        let stale = state.used_end.saturating_sub(range.start).min(len);
        state.used_end = state.used_end.max(range.end);
        Ok((SlabSegment { home: Arc::clone(&self.inner), start: range.start, len }, stale))
    }
}

impl Inner {
    /// # Errors
    /// `Conflict` in a forked child, which does not have the writable mapping.
    fn check_owner(&self) -> Result<()> {
        match self.owner == std::process::id() {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Conflict, "this slab belongs to the process that this one was forked from"))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// `OverBudget` when no free range is that long, `Conflict` in a forked child.
    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (mut part, stale) = self.take(len)?;
        part.writable()[..stale].fill(0);
        Ok(Box::new(part))
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let (mut part, _) = self.take(source.len())?;
        copy_parallel(part.writable(), source);
        Ok(Box::new(part))
    }
}

/// A range of a slab, given back on drop. Invariant S1: living parts lie inside both mappings and do not overlap, because
/// `FreeList` hands out no byte twice; the mutex around it orders the last use of a byte before its next.
pub(crate) struct SlabSegment {
    pub(super) home: Arc<Inner>,
    start: usize,
    len: usize,
}

impl SlabSegment {
    pub(crate) fn mapping_cache(&self) -> &Arc<MappingCache> {
        &self.home.mapping_cache
    }

    fn readable(&self) -> &[u8] {
        // SAFETY: S1: inside the mapping, which `home` keeps. The bytes are written only through the other mapping, with an
        // exclusive borrow of this part.
        unsafe { std::slice::from_raw_parts(self.home.readable.start().as_ptr().add(self.start), self.len) }
    }

    /// The bytes, where the part is filled. Only for the process that made the slab.
    fn writable(&mut self) -> &mut [u8] {
        // SAFETY: S1: inside the mapping, which `home` keeps and which was made writable; the exclusive borrow of the only
        // part that has these bytes excludes other references into this mapping.
        unsafe { std::slice::from_raw_parts_mut(self.home.writable.start().as_ptr().add(self.start), self.len) }
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len.max(1).next_multiple_of(cotensor_core::ALIGNMENT)
    }
}

impl Drop for SlabSegment {
    fn drop(&mut self) {
        self.home.state().free.give_back(self.range());
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
        self.home.check_owner().ok()?;
        Some(self.writable())
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        self.home.check_owner()?;
        let range = range_within(offset, source.len(), self.len)?;
        copy_parallel(&mut self.writable()[range], source);
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
        Some(self.home.fd.as_fd())
    }

    fn fd_offset(&self) -> usize {
        self.start
    }
}
