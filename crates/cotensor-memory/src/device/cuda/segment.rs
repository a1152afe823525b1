//! Segments: written by their producer, then read-only.

use super::functions::Access;
use super::handle::Handle;
use super::lendable::{Lendable, RangeOwner};
use super::mapping::Mapping;
use super::opened::Opened;
use cotensor_core::{Device, MemoryKind, Result, Segment, SegmentMut, range_within};
use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Memory of its own that its producer writes.
pub(super) struct CudaSegmentMut {
    // The order in which the fields are dropped: the mapping before the memory that it shows.
    pub(super) mapping: Arc<Lendable>,
    pub(super) handle: Handle,
    pub(super) device: Arc<Opened>,
    pub(super) len: usize,
    /// Whether the work of other code that writes the memory is known to have ended.
    pub(super) is_written: bool,
}

impl SegmentMut for CudaSegmentMut {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn device_address(&self) -> Result<u64> {
        Ok(self.mapping.lend(self.device.context()?))
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.len)?;
        if source.is_empty() {
            return Ok(());
        }
        self.mapping.wait_for_users()?;
        self.device.context()?.write(self.mapping.mapping(), range.start, source)
    }

    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::clone(&self.mapping) as Arc<dyn Any + Send + Sync>)
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let Self { device, handle, mapping, len, is_written } = *self;
        if !is_written {
            mapping.wait_for_users()?;
        }
        mapping.mapping().set_access(device.ordinal, Access::Read)?;
        let fd = Some(Arc::new(handle.export()?));
        Ok(Arc::new(CudaSegment { device, mapping, len, fd, kind: MemoryKind::Device, _whole: None }))
    }
}

/// Published memory at read-only addresses, which keep it. It is a tensor's own memory, a range of a slab of this process, or all of a slab of
/// another one.
pub(super) struct CudaSegment {
    pub(super) mapping: Arc<Lendable>,
    /// The descriptor by which other processes open it; none for memory of another process.
    pub(super) fd: Option<Arc<OwnedFd>>,
    pub(super) device: Arc<Opened>,
    pub(super) kind: MemoryKind,
    pub(super) len: usize,
    /// The segment of which this is the part of one tensor. It stays with its parts, so that they share a mapping.
    pub(super) _whole: Option<Arc<dyn Segment>>,
}

impl CudaSegment {
    /// Bytes of a slab of this process, which `owner` keeps.
    pub(super) fn of_range(
        readable: &Arc<Mapping>,
        fd: &Arc<OwnedFd>,
        device: &Arc<Opened>,
        bytes: Range<usize>,
        owner: Box<dyn RangeOwner>,
    ) -> Self {
        let mapping = Arc::new(Lendable::of_range(Arc::clone(readable), bytes.start, owner));
        let (fd, device) = (Some(Arc::clone(fd)), Arc::clone(device));
        Self { mapping, fd, device, kind: MemoryKind::Slab, len: bytes.len(), _whole: None }
    }
}

impl Segment for CudaSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        self.device.device.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn device_address(&self) -> Result<u64> {
        Ok(self.mapping.lend(self.device.context()?))
    }

    fn end_use(&self) -> bool {
        self.kind != MemoryKind::Slab || self.mapping.end_use()
    }

    fn retire(&self) {
        self.mapping.retire();
    }

    /// Each tensor in a slab of another process has users of its own: the lease of one does not wait for those of the others.
    fn for_tensor(&self, whole: &Arc<dyn Segment>) -> Arc<dyn Segment> {
        if self.kind != MemoryKind::Slab || self.mapping.is_range() {
            return Arc::clone(whole);
        }
        let mapping = Arc::new(Lendable::new(Arc::clone(self.mapping.mapping())));
        let (fd, device, kind) = (self.fd.clone(), Arc::clone(&self.device), self.kind);
        Arc::new(Self { mapping, fd, device, kind, len: self.len, _whole: Some(Arc::clone(whole)) })
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len)?;
        if target.is_empty() {
            return Ok(());
        }
        self.device.context()?.read(self.mapping.mapping(), self.mapping.start() + range.start, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    fn fd_offset(&self) -> usize {
        self.mapping.start()
    }
}
