//! A frame of a channel as a tensor.

use cotensor_core::{Device, MemoryKind, Result, Segment};
use cotensor_memory::FrameHold;
use cotensor_store::Lease;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A frame that a reader holds. Its bytes stay as they are until the last lease of its tensor is dropped.
pub struct Frame {
    pub(super) lease: Lease,
    pub(super) number: u64,
    pub(super) lost: u64,
    pub(super) age: Duration,
}

impl Frame {
    /// The tensor.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The tensor, without the frame.
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    /// The frame's number. The first one of a channel is 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of frames between this one and the one that the reader took before.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The time from the publication of the frame until the reader took it.
    pub fn age(&self) -> Duration {
        self.age
    }
}

/// The bytes of a frame. The hold is dropped last.
pub(super) struct FrameSegment {
    pub(super) bytes: Arc<dyn Segment>,
    pub(super) _hold: FrameHold,
}

impl Segment for FrameSegment {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn kind(&self) -> MemoryKind {
        self.bytes.kind()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.bytes.as_any()
    }

    fn device(&self) -> Device {
        self.bytes.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.bytes.bytes()
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.bytes.read_at(offset, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.bytes.fd()
    }

    fn fd_offset(&self) -> usize {
        self.bytes.fd_offset()
    }
}
