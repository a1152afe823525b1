//! A slab: memory that one session writes and in which many small tensors lie.

use cotensor_core::Result;
use cotensor_memory::{Guarantee, check_sealed};
use cotensor_store::backend::Charge;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The session that writes a slab.
pub(crate) trait SlabOwner: Send + Sync {
    /// The range at `offset` bytes of the owner's slab `number` has no lease any more.
    fn on_range_free(&self, number: u64, offset: u64);
}

/// A memfd that one session, and nobody else, can write.
pub(crate) struct Slab {
    pub(super) file: Arc<File>,
    pub(super) len: usize,
    pub(super) charge: Arc<Charge>,
    uses: Mutex<Uses>,
}

#[derive(Default)]
pub(super) struct Uses {
    /// The session that can write it, and its number there; none between a takeover and the session's return.
    pub(super) owner: Option<(Weak<dyn SlabOwner>, u64)>,
    /// Published tensors by their offsets.
    pub(super) live: HashMap<usize, u32>,
    /// All of them.
    pub(super) parts: usize,
}

impl Slab {
    /// Whether all of it is backed by memory is for the caller to check, where no former daemon did.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes that takes no new writer.
    pub(crate) fn new(file: Arc<File>, len: usize, charge: Arc<Charge>) -> Result<Self> {
        check_sealed(&*file, len, Guarantee::ProducerOnly)?;
        Ok(Self { file, len, charge, uses: Mutex::default() })
    }

    /// Tensors that may lie in it at a time. Of one whose publication was repeated there are two: twice as many as there
    /// are places is as many as an honest producer can have, for whom those of no bytes have places too.
    pub(super) fn parts_max(&self) -> usize {
        2 * (self.len / cotensor_core::ALIGNMENT).max(1)
    }

    /// From now on `owner` is told which ranges nobody leases any more; returns the offsets of those that somebody does.
    pub(crate) fn belongs(&self, owner: &Arc<dyn SlabOwner>, number: u64) -> Vec<u64> {
        let mut uses = self.uses();
        uses.owner = Some((Arc::downgrade(owner), number));
        uses.live.keys().map(|&offset| offset as u64).collect()
    }

    pub(super) fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What it takes from the budget.
    pub(crate) fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }
}
