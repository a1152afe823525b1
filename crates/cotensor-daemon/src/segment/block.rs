//! A block: memory that one session writes, with one tensor at a time.

use super::slab::{Slab, SlabOwner};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, Result};
use cotensor_memory::{BLOCK_BYTES_MAX, Guarantee, check_no_holes, check_sealed};
use cotensor_store::{EmbeddedStore, SegmentCharge};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// A memfd that one session can write and uses again. It is a slab while a tensor lies in it: the budget counts that slab, so eviction and
/// spilling free it as they free a tensor with memory of its own. The memory of an empty block belongs to the client alone.
#[derive(Clone)]
pub(crate) struct Block {
    file: Arc<File>,
    len: usize,
    /// The slab of the last tensor, while that lies in it.
    last: Arc<Mutex<Weak<Slab>>>,
}

impl Block {
    /// # Errors
    /// `Invalid` for a length that blocks do not have, `Unsupported` for another device than the host, `Refused` for anything but a memfd of `len` bytes
    /// that is sealed against new writers and has no holes.
    pub(crate) fn new(fd: OwnedFd, len: usize, device: Device) -> Result<Self> {
        if !(1..=BLOCK_BYTES_MAX).contains(&len) {
            let message = format!("a block of {len} bytes; blocks have 1 to {BLOCK_BYTES_MAX}");
            return Err(Error::invalid(message).in_field("bytes"));
        }
        if !device.is_host() {
            let message = format!("a block on {device}: blocks are host memory");
            return Err(Error::unsupported(message).in_field("device"));
        }
        check_sealed(&fd, len, Guarantee::ProducerOnly)?;
        check_no_holes(fd.as_fd(), len)?;
        Ok(Self { file: Arc::new(fd.into()), len, last: Arc::default() })
    }

    /// The block of a slab of a former server, in which a tensor lies.
    pub(crate) fn of(slab: &Arc<Slab>) -> Self {
        Self { file: Arc::clone(&slab.file), len: slab.len(), last: Arc::new(Mutex::new(Arc::downgrade(slab))) }
    }

    /// The slab of the next tensor, for `owner`, who knows the block as `number`. The charge keeps its memory counted until the tensor does so.
    ///
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn slab(
        &self,
        store: &EmbeddedStore,
        owner: &Arc<dyn SlabOwner>,
        number: u64,
    ) -> Result<(Arc<Slab>, SegmentCharge)> {
        let share = store.charge_segment(Device::Cpu, self.len as u64)?;
        let slab = Arc::new(Slab::checked(Arc::clone(&self.file), self.len, share.charge()));
        slab.belongs(owner, number);
        *lock(&self.last) = Arc::downgrade(&slab);
        Ok((slab, share))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether no tensor lies in it.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.last).strong_count() == 0
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
