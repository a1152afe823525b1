//! A slab: memory that one session writes and in which tensors lie.

use super::device::check_device_memory;
use crate::state::EndMark;
use cotensor_core::sync::lock;
use cotensor_core::{Device, Result};
use cotensor_memory::{Guarantee, check_sealed};
use cotensor_store::backend::Charge;
use cotensor_store::{LocalStore, SegmentCharge};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The session that writes a slab. The slab is locked during these calls.
pub(crate) trait SlabOwner: Send + Sync {
    /// The mark of the end of the session.
    fn end_mark(&self) -> &EndMark;

    /// The last lease in the range at `offset` bytes of the owner's slab `number` was released.
    fn on_range_free(&self, number: u64, offset: u64);

    /// A tensor is about to be published in that range. Whether [`on_range_free`](Self::on_range_free) was called for it, and the owner does not
    /// know that yet. Then the owner waits until it is called again.
    fn on_range_used(&self, number: u64, offset: u64) -> bool;
}

/// Memory that one session can write: a memfd, or memory of a device.
pub(crate) struct Slab {
    pub(super) file: Arc<File>,
    pub(super) len: usize,
    device: Device,
    counted: Mutex<Counted>,
    uses: Mutex<Uses>,
}

/// How long the budget counts a slab.
pub(super) enum Counted {
    /// While it exists.
    Always(Arc<Charge>),
    /// While tensors lie in it, which keep the charge: a block.
    WithTensors(Weak<Charge>),
}

impl Counted {
    /// The charge, unless the last tensor is being freed.
    fn share(&self) -> Option<SegmentCharge> {
        SegmentCharge::share(match self {
            Self::Always(charge) => Arc::clone(charge),
            Self::WithTensors(charge) => charge.upgrade()?,
        })
    }
}

#[derive(Default)]
pub(super) struct Uses {
    /// The session that can write it, and its number there. None until the session resumes after a takeover.
    pub(super) owner: Option<(Weak<dyn SlabOwner>, u64)>,
    /// Tensors by their offsets.
    pub(super) live: HashMap<usize, UsedRange>,
    /// The number of tensors.
    pub(super) parts: usize,
}

impl Uses {
    /// Counts a tensor at an offset, before it is published.
    pub(super) fn add_part(&mut self, offset: usize) -> &mut UsedRange {
        self.parts += 1;
        let range = self.live.entry(offset).or_default();
        range.parts += 1;
        range
    }
}

/// A range in which tensors lie.
#[derive(Default)]
pub(super) struct UsedRange {
    /// The number of tensors: a producer may repeat a publication.
    pub(super) parts: u32,
    /// Whether the owner waits for the end of the last of them: it knows that one of them was published. It uses the range of a publication that
    /// fails again at once.
    pub(super) is_published: bool,
}

impl Slab {
    /// The caller checks that a memfd has no holes, unless a former server did.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes that is sealed against new writers, and on a device, for a descriptor that cannot be
    /// such memory.
    pub(crate) fn new(file: Arc<File>, len: usize, charge: Arc<Charge>) -> Result<Self> {
        let device = charge.device();
        if device.is_host() {
            check_sealed(&*file, len, Guarantee::ProducerOnly)?;
        } else {
            check_device_memory(&file, len, device)?;
        }
        Ok(Self::checked(file, len, device, Counted::Always(charge)))
    }

    pub(super) fn checked(file: Arc<File>, len: usize, device: Device, counted: Counted) -> Self {
        Self { file, len, device, counted: Mutex::new(counted), uses: Mutex::default() }
    }

    /// Its share of the budget, which all of its tensors share. Evicts if the budget does not count it yet.
    ///
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn charge(&self, store: &LocalStore) -> Result<SegmentCharge> {
        if let Some(share) = lock(&self.counted).share() {
            return Ok(share);
        }
        // This may spill tensors, which takes long. Nothing is locked meanwhile.
        let share = store.charge_segment(self.device, self.len as u64)?;
        let mut counted = lock(&self.counted);
        if let Some(before) = counted.share() {
            return Ok(before);
        }
        match &mut *counted {
            Counted::Always(charge) => *charge = share.charge(),
            Counted::WithTensors(charge) => *charge = Arc::downgrade(&share.charge()),
        }
        Ok(share)
    }

    /// As [`charge`](Self::charge). From now on, the budget counts it while it exists.
    ///
    /// # Errors
    /// `OverBudget`.
    pub(super) fn charge_always(&self, store: &LocalStore) -> Result<SegmentCharge> {
        let share = self.charge(store)?;
        *lock(&self.counted) = Counted::Always(share.charge());
        Ok(share)
    }

    /// From now on, the budget counts it while tensors lie in it.
    pub(super) fn count_with_tensors(&self) {
        let mut counted = lock(&self.counted);
        if let Counted::Always(charge) = &*counted {
            let charge = Arc::downgrade(charge);
            let before = std::mem::replace(&mut *counted, Counted::WithTensors(charge));
            drop(counted);
            drop(before);
        }
    }

    /// The largest number of tensors in it: two for each aligned offset, because a producer may repeat a publication.
    /// Tensors without bytes have offsets, too.
    pub(super) fn parts_max(&self) -> usize {
        2 * (self.len / cotensor_core::ALIGNMENT).max(1)
    }

    /// Makes `owner` the session that is notified of free ranges, unless it has ended: the client's next session has the slab by then. Returns
    /// the offsets of ranges that are leased.
    pub(crate) fn belongs(&self, owner: &Arc<dyn SlabOwner>, number: u64) -> Vec<u64> {
        let mut uses = self.uses();
        let is_owner = !owner.end_mark().is_set();
        if is_owner {
            uses.owner = Some((Arc::downgrade(owner), number));
        }
        let live = uses.live.iter_mut().map(|(offset, range)| {
            range.is_published |= is_owner;
            *offset as u64
        });
        live.collect()
    }

    /// Ends the ownership of a session that has ended.
    pub(crate) fn disown(&self, session: &dyn SlabOwner) {
        let mut uses = self.uses();
        if uses.owner.as_ref().is_some_and(|(owner, _)| std::ptr::addr_eq(owner.as_ptr(), session)) {
            uses.owner = None;
        }
    }

    pub(super) fn uses(&self) -> MutexGuard<'_, Uses> {
        lock(&self.uses)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The device whose budget it is charged to.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Whether no tensor lies in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.uses().parts == 0
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
