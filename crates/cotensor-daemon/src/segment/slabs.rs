//! The table of open slabs.

use super::read::Inode;
use super::slab::{Slab, SlabOwner};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Result};
use cotensor_memory::check_no_holes;
use cotensor_store::{EmbeddedStore, SegmentCharge};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The open slabs. Each belongs to one session: two would write each other's ranges. A session that reopens a slab gets
/// the offsets of the tensors from its former connection.
#[derive(Default)]
pub(crate) struct Slabs(Mutex<HashMap<Inode, Weak<Slab>>>);

impl Slabs {
    /// Opens a slab of `len` bytes on `device` for `owner`: a new one, or one whose former session has ended.
    ///
    /// # Errors
    /// `Conflict` while another session has it; `Unsupported` and `Refused` as [`Slab::new`]; `OverBudget`.
    pub(crate) fn open(
        &self,
        store: &EmbeddedStore,
        (fd, inode): (OwnedFd, Inode),
        (len, device): (usize, Device),
        owner: &Arc<dyn SlabOwner>,
    ) -> Result<(Arc<Slab>, SegmentCharge)> {
        if let Some(found) = self.reopen(store, inode, len, owner)? {
            return Ok(found);
        }
        // This may spill tensors, which takes long. The table is not locked meanwhile.
        let share = store.charge_segment(device, len as u64)?;
        let slab = Arc::new(Slab::new(Arc::new(fd.into()), len, share.charge())?);
        check_no_holes(slab.fd(), len)?;
        slab.belongs(owner, 0);
        let mut known = self.known();
        if known.get(&inode).is_some_and(|slab| slab.strong_count() > 0) {
            return Err(Error::new(ErrorKind::Conflict, "this slab was opened meanwhile").in_field("slab"));
        }
        known.retain(|_, slab| slab.strong_count() > 0);
        known.insert(inode, Arc::downgrade(&slab));
        Ok((slab, share))
    }

    /// A slab whose former session has ended, for `owner`; `None` for a slab that is not known.
    ///
    /// # Errors
    /// `Conflict` while another session has it.
    pub(crate) fn reopen(
        &self,
        store: &EmbeddedStore,
        inode: Inode,
        len: usize,
        owner: &Arc<dyn SlabOwner>,
    ) -> Result<Option<(Arc<Slab>, SegmentCharge)>> {
        let known = self.known();
        if let Some(slab) = known.get(&inode).and_then(Weak::upgrade) {
            let current = slab.uses().owner.as_ref().and_then(|(owner, _)| owner.upgrade());
            if current.is_some() || slab.len != len {
                return Err(Error::new(ErrorKind::Conflict, "this slab is open already").in_field("slab"));
            }
            // Its number is set later. Ranges that are freed until then are not in the list of live ones.
            slab.belongs(owner, 0);
            let share = store.reopen_segment(&slab.charge);
            return Ok(Some((slab, share)));
        }
        Ok(None)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Inode, Weak<Slab>>> {
        lock(&self.0)
    }

    /// Adds a slab of a former server.
    pub(crate) fn restore(&self, inode: Inode, slab: &Arc<Slab>) {
        self.known().insert(inode, Arc::downgrade(slab));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Part, inode};
    use crate::{Config, Daemon};
    use cotensor_core::Memory;

    #[test]
    fn reopened_slab_is_the_one_with_leased_parts() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let session = daemon.begin_session(None, None) as Arc<dyn SlabOwner>;
        let made = cotensor_memory::Slab::create(1 << 20).unwrap();
        let _written = made.reserve(64).unwrap();
        let fd = || made.fd().try_clone_to_owned().unwrap();
        let (inode, host) = (inode(made.fd()).unwrap(), made.device());
        for leased in [true, false] {
            // As restored from a former server, after the wait for its session.
            let known = Arc::new(
                Slab::new(Arc::new(fd().into()), 1 << 20, daemon.store.charge_existing(host, 1 << 20).unwrap())
                    .unwrap(),
            );
            daemon.slabs.restore(inode, &known);
            let part = leased.then(|| Part::new(Arc::clone(&known), 128, 64).unwrap());
            drop(known);
            let (slab, share) = daemon.slabs.open(&daemon.store, (fd(), inode), (1 << 20, host), &session).unwrap();
            assert_eq!(slab.belongs(&session, 1), if leased { vec![128] } else { vec![] });
            assert_eq!(daemon.store.memory_usage_bytes(), 1 << 20, "it is counted once");
            let other = daemon.begin_session(None, None) as Arc<dyn SlabOwner>;
            assert!(
                daemon.slabs.open(&daemon.store, (fd(), inode), (1 << 20, host), &other).is_err(),
                "it is one session's"
            );
            drop((slab, share, part));
            assert_eq!(daemon.store.memory_usage_bytes(), 0);
        }
    }
}
