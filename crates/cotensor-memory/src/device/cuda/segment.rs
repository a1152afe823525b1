//! Segments: written by their producer, then read-only.

use super::functions::Access;
use super::handle::Handle;
use super::lendable::Lendable;
use super::opened::Opened;
use cotensor_core::{Device, MemoryKind, Result, Segment, SegmentMut, range_within};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Memory that its producer writes.
pub(super) struct CudaSegmentMut {
    // The order in which the fields are dropped: the mapping before the memory that it shows.
    pub(super) mapping: Arc<Lendable>,
    pub(super) handle: Handle,
    pub(super) device: Arc<Opened>,
    pub(super) len: usize,
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
        self.device.context()?.write(&self.mapping, range.start, source)
    }

    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::clone(&self.mapping) as Arc<dyn Any + Send + Sync>)
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let Self { device, handle, mapping, len } = *self;
        mapping.wait_for_users()?;
        mapping.set_access(device.ordinal, Access::Read)?;
        let fd = handle.export()?;
        Ok(Arc::new(CudaSegment { device, mapping, len, fd }))
    }
}

/// Published memory: a read-only mapping, and the descriptor by which other processes open it. Both keep it.
pub(super) struct CudaSegment {
    pub(super) mapping: Arc<Lendable>,
    pub(super) fd: OwnedFd,
    pub(super) device: Arc<Opened>,
    pub(super) len: usize,
}

impl Segment for CudaSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
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

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len)?;
        if target.is_empty() {
            return Ok(());
        }
        self.device.context()?.read(&self.mapping, range.start, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}
