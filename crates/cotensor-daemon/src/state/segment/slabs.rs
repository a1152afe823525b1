//! The table of open slabs and blocks.
//!
//! A block is a slab with one tensor at a time, which the budget counts while the tensor lies in it. Eviction and spilling free that tensor
//! as they free one with memory of its own. The memory of an empty block belongs to the client alone.

use super::read::Inode;
use super::slab::{Counted, Slab, SlabOwner};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Result};
use cotensor_memory::{BLOCK_BYTES_MAX, Guarantee, check_no_holes, check_sealed};
use cotensor_store::{LocalStore, SegmentCharge};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The open slabs and blocks of host memory, and those of ended sessions in which tensors lie. Each belongs to one session: two would write
/// each other's ranges. A session that reopens a slab gets the offsets of the tensors from its former connection. Slabs on devices are not
/// in the table: their descriptors may name one file, that of the driver.
#[derive(Default)]
pub(crate) struct Slabs(Mutex<HashMap<Inode, Weak<Slab>>>);

/// Memory that a client offers as a slab or a block.
pub(crate) struct SlabFile {
    pub(crate) fd: OwnedFd,
    pub(crate) inode: Inode,
    /// Its length in bytes.
    pub(crate) len: usize,
    pub(crate) device: Device,
}

impl Slabs {
    /// Opens a slab for `owner`: a new one, or one whose former session has ended.
    ///
    /// # Errors
    /// `Conflict` while another session has it; `Refused` as [`Slab::new`]; `OverBudget`.
    pub(crate) fn open(
        &self,
        store: &LocalStore,
        file: SlabFile,
        owner: &Arc<dyn SlabOwner>,
    ) -> Result<(Arc<Slab>, SegmentCharge)> {
        let SlabFile { fd, inode, len, device } = file;
        if let Some(slab) = self.reopen(inode, len, owner)? {
            let share = slab.charge_always(store)?;
            return Ok((slab, share));
        }
        // This may spill tensors, which takes long. The table is not locked meanwhile.
        let share = store.charge_segment(device, len as u64)?;
        let slab = Arc::new(Slab::new(Arc::new(fd.into()), len, share.charge())?);
        check_no_holes(slab.fd(), len)?;
        self.add(inode, &slab, owner)?;
        Ok((slab, share))
    }

    /// Opens a block for `owner`, as [`open`](Self::open) does a slab.
    ///
    /// # Errors
    /// `Conflict` while another session has it; as [`check_block`] and [`new_block`].
    pub(crate) fn open_block(&self, file: SlabFile, owner: &Arc<dyn SlabOwner>) -> Result<Arc<Slab>> {
        let SlabFile { fd, inode, len, device } = file;
        check_block(len, device)?;
        if let Some(slab) = self.reopen(inode, len, owner)? {
            slab.count_with_tensors();
            return Ok(slab);
        }
        let slab = Arc::new(new_block(fd, len)?);
        self.add(inode, &slab, owner)?;
        Ok(slab)
    }

    fn add(&self, inode: Inode, slab: &Arc<Slab>, owner: &Arc<dyn SlabOwner>) -> Result<()> {
        slab.belongs(owner, 0);
        let mut known = self.known();
        if known.get(&inode).is_some_and(|slab| slab.strong_count() > 0) {
            return Err(Error::new(ErrorKind::Conflict, "this slab was opened meanwhile").in_field("slab"));
        }
        known.retain(|_, slab| slab.strong_count() > 0);
        known.insert(inode, Arc::downgrade(slab));
        Ok(())
    }

    /// A slab whose former session has ended, for `owner`; `None` for a slab that is not known.
    ///
    /// # Errors
    /// `Conflict` while another session has it.
    fn reopen(&self, inode: Inode, len: usize, owner: &Arc<dyn SlabOwner>) -> Result<Option<Arc<Slab>>> {
        let known = self.known();
        if let Some(slab) = known.get(&inode).and_then(Weak::upgrade) {
            let current = slab.uses().owner.as_ref().and_then(|(owner, _)| owner.upgrade());
            if current.is_some_and(|owner| !owner.end_mark().is_set()) || slab.len != len {
                return Err(Error::new(ErrorKind::Conflict, "this slab is open already").in_field("slab"));
            }
            // Its number is set later. Ranges that are freed until then are not in the list of live ones.
            slab.belongs(owner, 0);
            return Ok(Some(slab));
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

/// Refuses what no block is, by its length and its device.
///
/// # Errors
/// `Invalid` for a length that blocks do not have, `Unsupported` for another device than the host.
fn check_block(len: usize, device: Device) -> Result<()> {
    if !(1..=BLOCK_BYTES_MAX).contains(&len) {
        let message = format!("a block of {len} bytes; blocks have 1 to {BLOCK_BYTES_MAX}");
        return Err(Error::invalid(message).in_field("bytes"));
    }
    if !device.is_host() {
        let message = format!("a block on {device}: blocks are host memory");
        return Err(Error::unsupported(message).in_field("device"));
    }
    Ok(())
}

/// A new block, which [`check_block`] accepts.
///
/// # Errors
/// `Refused` for anything but a memfd of `len` bytes that is sealed against new writers and has no holes.
fn new_block(fd: OwnedFd, len: usize) -> Result<Slab> {
    check_sealed(&fd, len, Guarantee::ProducerOnly)?;
    check_no_holes(fd.as_fd(), len)?;
    Ok(Slab::checked(Arc::new(fd.into()), len, Device::Cpu, Counted::WithTensors(Weak::new())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::segment::{Part, inode};
    use crate::{Config, Daemon};
    use cotensor_core::Memory;

    /// A slab as a request to open it has it.
    fn file_of(made: &cotensor_memory::Slab) -> SlabFile {
        let fd = made.fd().try_clone_to_owned().unwrap();
        SlabFile { fd, inode: inode(made.fd()).unwrap(), len: made.len(), device: made.device() }
    }

    #[test]
    fn reopened_slab_is_the_one_with_leased_parts() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let session = daemon.begin_session(None, None) as Arc<dyn SlabOwner>;
        let made = cotensor_memory::Slab::create(1 << 20).unwrap();
        let _written = made.reserve(64).unwrap();
        for leased in [true, false] {
            // As restored from a former server, after the wait for its session.
            let charge = daemon.store.charge_existing(made.device(), 1 << 20).unwrap();
            let of_tensor = leased.then(|| daemon.store.reopen_segment(&charge));
            let SlabFile { fd, inode, .. } = file_of(&made);
            let known = Arc::new(Slab::new(Arc::new(fd.into()), 1 << 20, charge).unwrap());
            daemon.slabs.restore(inode, &known);
            let part = leased.then(|| Part::restored(Arc::clone(&known), 128, 64).unwrap());
            drop(known);
            let (slab, share) = daemon.slabs.open(&daemon.store, file_of(&made), &session).unwrap();
            assert_eq!(slab.belongs(&session, 1), if leased { vec![128] } else { vec![] });
            assert_eq!(daemon.store.memory_usage_bytes(), 1 << 20, "it is counted once");
            let other = daemon.begin_session(None, None) as Arc<dyn SlabOwner>;
            assert!(daemon.slabs.open(&daemon.store, file_of(&made), &other).is_err(), "it is one session's");
            drop((slab, share, part, of_tensor));
            assert_eq!(daemon.store.memory_usage_bytes(), 0);
        }
    }

    /// A call of a lost connection is done after the client has begun its next session.
    #[test]
    fn late_call_of_a_replaced_session_leaves_its_slab_to_the_next_one() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let made = cotensor_memory::Slab::create(1 << 20).unwrap();
        let open = |owner: &Arc<dyn SlabOwner>| daemon.slabs.open(&daemon.store, file_of(&made), owner);
        let [former, next] = [(); 2].map(|()| daemon.begin_session(None, None));
        drop(daemon.end_session(&former));
        let [former, next] = [former, next].map(|session| session as Arc<dyn SlabOwner>);
        let late = open(&former);
        let (slab, _share) = open(&next).unwrap();
        slab.belongs(&next, 1);
        slab.belongs(&former, 2);
        assert!(open(&former).is_err(), "it is open in the next session");
        drop(late);
        assert!(open(&former).is_err(), "and stays so");
    }

    #[test]
    fn block_of_an_ended_session_keeps_its_tensor() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let made = cotensor_memory::Slab::create(1 << 20).unwrap();
        let open = |owner: &Arc<dyn SlabOwner>| daemon.slabs.open_block(file_of(&made), owner);
        let session = daemon.begin_session(None, None);
        let owner = Arc::clone(&session) as Arc<dyn SlabOwner>;
        let block = open(&owner).unwrap();
        assert_eq!(daemon.store.memory_usage_bytes(), 0, "an empty block is not counted");
        let share = block.charge(&daemon.store).unwrap();
        let part = Part::new(Arc::clone(&block), 0, 1 << 20, &*owner).unwrap();
        drop(daemon.end_session(&session));
        drop((block, session, owner));
        let next = daemon.begin_session(None, None) as Arc<dyn SlabOwner>;
        let block = open(&next).unwrap();
        assert_eq!(block.belongs(&next, 1), [0], "the tensor of the former connection");
        let again = block.charge(&daemon.store).unwrap();
        assert_eq!(daemon.store.memory_usage_bytes(), 1 << 20, "it is counted once");
        drop((part, share, again));
        assert_eq!(daemon.store.memory_usage_bytes(), 0);
        drop(block.charge(&daemon.store).unwrap());
    }
}
