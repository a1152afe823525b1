//! Memory that clients made: checked, kept, passed on, and never mapped here.

use crate::session::Session;
use crate::takeover::Inode;
use cotensor_core::{Device, Error, ErrorKind, MemoryKind, Result, Segment};
use cotensor_memory::{Guarantee, MemfdMut, check_no_holes, check_sealed};
use cotensor_store::SegmentCharge;
use cotensor_store::backend::Charge;
use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A memfd that nobody can write any more.
pub(crate) struct Sealed {
    /// The ledger has it, too.
    file: Arc<File>,
    len: usize,
}

impl Sealed {
    /// What a client made.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes, all of them backed by memory, with every seal.
    pub(crate) fn new(fd: OwnedFd, len: usize) -> Result<Self> {
        let sealed = Self::known(Arc::new(fd.into()), len)?;
        check_no_holes(&*sealed.file, len)?;
        Ok(sealed)
    }

    /// What a former daemon, or this process, knows to be backed by memory.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes with every seal.
    pub(crate) fn known(file: Arc<File>, len: usize) -> Result<Self> {
        check_sealed(&*file, len, Guarantee::Immutable)?;
        Ok(Self { file, len })
    }

    /// Memory that was filled here, kept as what clients publish is: by its descriptor, not mapped.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub(crate) fn of(memory: MemfdMut) -> Result<Self> {
        let sealed = memory.seal()?;
        let fd = sealed.fd().ok_or_else(|| Error::unsupported("this memory has no descriptor"))?;
        let fd = fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        Self::known(Arc::new(fd.into()), sealed.len())
    }
}

impl Segment for Sealed {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        read(&self.file, offset, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// A memfd that one session, and nobody else, can write.
pub(crate) struct Slab {
    file: Arc<File>,
    len: usize,
    charge: Arc<Charge>,
    uses: Mutex<Uses>,
}

#[derive(Default)]
struct Uses {
    /// The session that can write it, and its number there; none between a takeover and the session's return.
    owner: Option<(Weak<Session>, u64)>,
    /// Published tensors by their offsets.
    live: HashMap<usize, u32>,
    /// All of them.
    parts: usize,
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
    fn parts_max(&self) -> usize {
        2 * (self.len / cotensor_core::ALIGNMENT).max(1)
    }

    /// From now on `owner` is told which ranges nobody leases any more; returns the offsets of those that somebody does.
    pub(crate) fn belongs(&self, owner: &Arc<Session>, number: u64) -> Vec<u64> {
        let mut uses = self.uses();
        uses.owner = Some((Arc::downgrade(owner), number));
        uses.live.keys().map(|&offset| offset as u64).collect()
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
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

/// The slabs that there are. Two sessions that took one memfd for their own would use each other's ranges, and so would one
/// whose former connection left tensors in it that it is not told of.
#[derive(Default)]
pub(crate) struct Slabs(Mutex<HashMap<Inode, Weak<Slab>>>);

impl Slabs {
    /// A slab for `session`: a new one, or what another session, which has ended, left of it.
    ///
    /// # Errors
    /// `Conflict` while another session has it; `Refused` as [`Slab::new`]; `OverBudget`.
    pub(crate) fn open(
        &self,
        (fd, inode): (OwnedFd, Inode),
        len: usize,
        session: &Arc<Session>,
    ) -> Result<(Arc<Slab>, SegmentCharge)> {
        if let Some(found) = self.find(inode, len, session)? {
            return Ok(found);
        }
        // May take long, where others' tensors have to go to disk first: nobody waits for that here.
        let share = session.daemon.store.charge_segment(Device::Cpu, len as u64)?;
        let slab = Arc::new(Slab::new(Arc::new(fd.into()), len, share.charge())?);
        check_no_holes(slab.fd(), len)?;
        slab.belongs(session, 0);
        let mut known = self.known();
        if known.get(&inode).is_some_and(|slab| slab.strong_count() > 0) {
            return Err(Error::new(ErrorKind::Conflict, "this slab was opened meanwhile").in_field("slab"));
        }
        known.retain(|_, slab| slab.strong_count() > 0);
        known.insert(inode, Arc::downgrade(&slab));
        Ok((slab, share))
    }

    /// A slab that is known, for `session`.
    fn find(&self, inode: Inode, len: usize, session: &Arc<Session>) -> Result<Option<(Arc<Slab>, SegmentCharge)>> {
        let known = self.known();
        if let Some(slab) = known.get(&inode).and_then(Weak::upgrade) {
            let owner = slab.uses().owner.as_ref().and_then(|(owner, _)| owner.upgrade());
            if owner.is_some() || slab.len != len {
                return Err(Error::new(ErrorKind::Conflict, "this slab is open already").in_field("slab"));
            }
            // Its number there is yet to come; what is freed meanwhile is not among what is live then.
            slab.belongs(session, 0);
            let share = session.daemon.store.reopen_segment(&slab.charge);
            return Ok(Some((slab, share)));
        }
        Ok(None)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Inode, Weak<Slab>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Knows a slab of a former daemon.
    pub(crate) fn restore(&self, inode: Inode, slab: &Arc<Slab>) {
        self.known().insert(inode, Arc::downgrade(slab));
    }
}

/// A tensor's place in a slab. When it goes, nobody leases the place any more.
pub(crate) struct Part {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Part {
    /// The slab's owner is told when the last part at this offset goes.
    ///
    /// # Errors
    /// `Invalid` when the place is not inside the slab, `Conflict` when too many tensors are.
    pub(crate) fn new(slab: Arc<Slab>, offset: usize, len: usize) -> Result<Self> {
        if !offset.is_multiple_of(cotensor_core::ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > slab.len)
        {
            let message = format!("{len} bytes at {offset} are no place in a slab of {}", slab.len);
            return Err(Error::invalid(message).in_field("offset"));
        }
        let mut uses = slab.uses();
        if uses.parts >= slab.parts_max() {
            let message = format!("{} tensors lie in this slab of {} bytes", uses.parts, slab.len);
            return Err(Error::new(ErrorKind::Conflict, message).in_field("slab"));
        }
        uses.parts += 1;
        *uses.live.entry(offset).or_default() += 1;
        drop(uses);
        Ok(Self { slab, offset, len })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut uses = self.slab.uses();
        uses.parts -= 1;
        if let Some(count) = uses.live.get_mut(&self.offset) {
            *count -= 1;
            if *count > 0 {
                return;
            }
        }
        uses.live.remove(&self.offset);
        let owner = uses.owner.as_ref().and_then(|(owner, number)| Some((owner.upgrade()?, *number)));
        drop(uses);
        if let Some((owner, slab)) = owner {
            owner.freed(slab, self.offset as u64);
        }
    }
}

impl Segment for Part {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        match offset.checked_add(target.len()) {
            Some(end) if end <= self.len => read(&self.slab.file, self.offset + offset, target),
            _ => Err(Error::invalid(format!("{} bytes at {offset} of {}", target.len(), self.len))),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.slab.fd())
    }

    fn fd_offset(&self) -> usize {
        self.offset
    }
}

/// The file of a segment of the daemon's.
pub(crate) fn file_of(segment: &dyn Segment) -> Option<Arc<File>> {
    let segment = segment.as_any()?;
    let of_slab = || segment.downcast_ref::<Part>().map(|part| &part.slab.file);
    segment.downcast_ref::<Sealed>().map(|sealed| &sealed.file).or_else(of_slab).map(Arc::clone)
}

fn read(file: &File, offset: usize, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(target, offset as u64).map_err(|error| Error::io("reading a segment", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::takeover::inode;
    use crate::{Config, Daemon};
    use cotensor_core::Memory;

    #[test]
    fn a_slab_that_comes_back_late_is_the_one_that_others_lease_parts_of() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let session = daemon.begin_session(None, None);
        let made = cotensor_memory::Slab::create(1 << 20).unwrap();
        let _written = made.reserve(64).unwrap();
        let fd = || made.fd().try_clone_to_owned().unwrap();
        let inode = inode(made.fd()).unwrap();
        for leased in [true, false] {
            // As a former daemon knew it, whose session is not waited for any more.
            let known = Arc::new(
                Slab::new(Arc::new(fd().into()), 1 << 20, daemon.store.charge_existing(Device::Cpu, 1 << 20).unwrap())
                    .unwrap(),
            );
            daemon.slabs.restore(inode, &known);
            let part = leased.then(|| Part::new(Arc::clone(&known), 128, 64).unwrap());
            drop(known);
            let (slab, share) = daemon.slabs.open((fd(), inode), 1 << 20, &session).unwrap();
            assert_eq!(slab.belongs(&session, 1), if leased { vec![128] } else { vec![] });
            assert_eq!(daemon.store.memory_usage_bytes(), 1 << 20, "it is counted once");
            let other = daemon.begin_session(None, None);
            assert!(daemon.slabs.open((fd(), inode), 1 << 20, &other).is_err(), "it is one session's");
            drop((slab, share, part));
            assert_eq!(daemon.store.memory_usage_bytes(), 0);
        }
    }
}
