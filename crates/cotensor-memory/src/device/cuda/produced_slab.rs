//! Memory that another library of this process has for its arrays, as a slab of a store.

use super::functions::Access;
use super::handle::Handle;
use super::lendable::RangeOwner;
use super::mapping::Mapping;
use super::opened::Opened;
use super::segment::CudaSegment;
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, SlabMemory};
use std::any::Any;
use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Memory that the library has.
pub(super) struct Produced {
    // The order in which the fields are dropped: the mapping before the memory that it shows.
    pub(super) writable: Mapping,
    handle: Handle,
    /// As a slab of a store, while it is one.
    slab: Mutex<Weak<ProducedSlab>>,
}

/// Memory of the library as a slab: its read-only addresses and its descriptor, which keep it.
pub(super) struct ProducedSlab {
    readable: Arc<Mapping>,
    fd: Arc<OwnedFd>,
    device: Arc<Opened>,
    /// Where ranges start.
    ranges: Mutex<HashSet<usize>>,
}

/// A range of a slab that has a segment.
struct ProducedRange {
    slab: Arc<ProducedSlab>,
    start: usize,
    len: usize,
    /// Whether its end does not tell that no process reads it. Several stores of the process can have ranges of the slab, so it is not the
    /// slab's.
    is_retired: AtomicBool,
    /// The array.
    owner: ManuallyDrop<Box<dyn Any + Send + Sync>>,
}

impl Produced {
    /// Memory at the writable addresses of its library.
    pub(super) fn new(writable: Mapping, handle: Handle) -> Self {
        Self { writable, handle, slab: Mutex::default() }
    }

    /// The memory as a slab: the one that stores have, or a new one.
    pub(super) fn slab(&self, device: &Arc<Opened>) -> Result<Arc<ProducedSlab>> {
        let mut known = lock(&self.slab);
        if let Some(slab) = known.upgrade() {
            return Ok(slab);
        }
        let (driver, bytes) = (&device.driver, self.writable.bytes());
        let readable = Mapping::of_created(driver, device.ordinal, &self.handle, bytes, Access::Read)?;
        let (readable, fd) = (Arc::new(readable), Arc::new(self.handle.export()?));
        let slab = Arc::new(ProducedSlab { readable, fd, device: Arc::clone(device), ranges: Mutex::default() });
        *known = Arc::downgrade(&slab);
        Ok(slab)
    }
}

impl ProducedSlab {
    /// The range of an array of `len` bytes, which `owner` keeps.
    ///
    /// # Errors
    /// `Conflict` for an array that is published already.
    pub(super) fn place(
        self: &Arc<Self>,
        start: usize,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Box<dyn SegmentMut>> {
        if !lock(&self.ranges).insert(start) {
            return Err(Error::new(ErrorKind::Conflict, "this array is published, and a process has a lease of it"));
        }
        let (slab, is_retired, owner) = (Arc::clone(self), AtomicBool::new(false), ManuallyDrop::new(owner));
        Ok(Box::new(ProducedRange { slab, start, len, is_retired, owner }))
    }
}

impl Memory for ProducedSlab {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        self.device.device.device()
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let message = format!("the memory is another library's, which has no room for {len} bytes of others");
        Err(Error::new(ErrorKind::OverBudget, message))
    }
}

impl SlabMemory for ProducedSlab {
    fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.reserve(len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn size_bytes(&self) -> usize {
        self.readable.bytes()
    }

    fn is_unused(&self) -> bool {
        lock(&self.ranges).is_empty()
    }

    fn is_placed_by_owner(&self) -> bool {
        true
    }
}

impl RangeOwner for ProducedRange {
    /// Keeps the array until the process ends.
    fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }
}

impl SegmentMut for ProducedRange {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn write_at(&mut self, _: usize, _: &[u8]) -> Result<()> {
        Err(Error::unsupported("the library that has this memory writes it"))
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let (slab, bytes) = (Arc::clone(&self.slab), self.start..self.start + self.len);
        Ok(Arc::new(CudaSegment::of_range(&slab.readable, &slab.fd, &slab.device, bytes, self)))
    }
}

impl Drop for ProducedRange {
    /// Gives the array back to its library. Where other processes may have leases of which this one learns nothing, the array stays until the
    /// process ends: the library would write its bytes.
    fn drop(&mut self) {
        lock(&self.slab.ranges).remove(&self.start);
        if !*self.is_retired.get_mut() {
            // SAFETY: the value is not used again.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}
