//! Slabs and blocks: memory of tensors that this process publishes, used again.

use super::freed_ranges::{FreedRanges, OwnSlab};
use super::next_block::NextBlock;
use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Device, ErrorKind, Result, SegmentMut, SlabMemory};
use cotensor_memory::process::duplicate_fd;
use cotensor_memory::{BlockLimits, Blocks, GiveBack, Slab, Unused};
use rustix::param::page_size;
use std::os::fd::OwnedFd;
use std::ptr::addr_eq;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Bytes of a client's first slab, in whole units of its memory: room for a second small tensor beside one that stays. A slab that becomes
/// empty again and again would cost the supervisor an event each time.
const SLAB_BYTES_MIN: usize = 8 << 10;
/// The most bytes of a slab, unless one tensor needs more.
const SLAB_BYTES_MAX: usize = 4 << 20;
/// The bytes of all slabs of host memory up to which empty ones stay: so a client with few small tensors has no thread that looks for them.
const STAYING_BYTES: usize = 4 << 20;

/// The slabs of this client, for small tensors, and its blocks, for one larger tensor each. Those of host memory outlive the daemon: the
/// client opens them again in the next session. A slab on a device gets no further tensors in the next session, because no number of a file
/// tells the daemon that it knows the memory.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Mutex<OpenSlabs>,
    freed: FreedRanges,
    /// The thread that gives idle blocks and idle slabs back.
    pub(super) gives_back: GiveBack,
    /// Whether slabs of host memory have more than [`STAYING_BYTES`].
    has_many_on_host: AtomicBool,
    /// What makes the next block of a series.
    pub(super) next_block: NextBlock,
}

/// Slabs by numbers of this client, the newest last.
struct OpenSlabs {
    generation: u64,
    next: u64,
    open: Vec<OpenSlab>,
    blocks: Blocks<u64>,
}

struct OpenSlab {
    number: u64,
    memory: Arc<dyn SlabMemory>,
    /// Whether the last round of [`Slabs::give_back`] found no tensor in it, and none came since.
    was_unused: bool,
    /// Whether it gets no further tensors: a slab on a device whose session has ended. Those that were reserved before are published in it.
    is_retired: bool,
}

/// A slab before a session opens it, with all that can fail in this process.
pub(super) struct NewSlab {
    memory: Arc<dyn SlabMemory>,
    /// For the daemon.
    fd: OwnedFd,
    range: Box<dyn SegmentMut>,
}

impl NewSlab {
    /// `memory` with a range of `len` bytes.
    ///
    /// # Errors
    /// As [`reserve`](cotensor_core::Memory::reserve); `OverBudget` at the process's limit of descriptors.
    pub(super) fn new(memory: &Arc<dyn SlabMemory>, len: usize) -> Result<Self> {
        Ok(Self { memory: Arc::clone(memory), fd: duplicate_fd(memory.fd())?, range: memory.reserve(len)? })
    }
}

impl Default for OpenSlabs {
    fn default() -> Self {
        Self { generation: 0, next: 0, open: Vec::new(), blocks: Blocks::new(BlockLimits::default()) }
    }
}

impl Slabs {
    pub(super) fn freed(&self) -> FreedRanges {
        self.freed.clone()
    }

    /// The least and the best number of bytes for a new slab on `device` that has room for `len` bytes.
    ///
    /// A slab is allocated and counted in full until its last tensor is freed, often long after this client. So the
    /// first slab is small, and each further one is as long as all slabs of the device together. A client takes at most about
    /// twice what it publishes, and a client that publishes much has few slabs.
    pub(super) fn next_bytes(&self, device: Device, len: usize) -> (usize, usize) {
        let slabs = lock(&self.slabs);
        let all: usize = slabs.open.iter().filter(|slab| slab.is_on(device)).map(|slab| slab.memory.size_bytes()).sum();
        (whole_units(device, len), whole_units(device, all.clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).max(len)))
    }

    /// Opens a slab in the session. Returns the range in it. `reservation` has the bytes of a slab on a device.
    pub(super) fn open_in(
        &self,
        session: &Session,
        slab: NewSlab,
        reservation: Option<u64>,
    ) -> Result<(OwnSlab, Box<dyn SegmentMut>)> {
        let NewSlab { memory, fd, range } = slab;
        Ok((self.enter(session, memory, fd, reservation)?, range))
    }

    /// The place of a range of `slab`, in which its owner places tensors itself. Opens the slab in the session unless it is open. The range
    /// exists, so that the slab is in use.
    pub(super) fn open_placed(&self, session: &Session, slab: &Arc<dyn SlabMemory>) -> Result<OwnSlab> {
        let _opening = self.freed.opening();
        let is_it = |open: &OpenSlab| !open.is_retired && addr_eq(Arc::as_ptr(&open.memory), Arc::as_ptr(slab));
        if let Some(open) = lock(&self.slabs).open.iter_mut().find(|open| is_it(open)) {
            open.was_unused = false;
            return Ok(open.place());
        }
        self.enter(session, Arc::clone(slab), duplicate_fd(slab.fd())?, None)
    }

    /// Opens a slab in the session, for tensors that lie in it.
    fn enter(
        &self,
        session: &Session,
        memory: Arc<dyn SlabMemory>,
        fd: OwnedFd,
        reservation: Option<u64>,
    ) -> Result<OwnSlab> {
        let opened = open_with(session, &*memory, fd, false, reservation)?;
        let mut slabs = lock(&self.slabs);
        let number = slabs.next_number(session)?;
        let slab = OpenSlab { number, memory, was_unused: false, is_retired: false };
        let own = slab.place();
        slabs.open.push(slab);
        self.freed.opened(session.generation, number, opened.slab, &opened.live);
        self.has_many_on_host.store(slabs.host_bytes() > STAYING_BYTES, Ordering::Relaxed);
        Ok(own)
    }

    /// Whether idle slabs on `device` are given back.
    pub(super) fn gives_back_on(&self, device: Device) -> bool {
        !device.is_host() || self.has_many_on_host.load(Ordering::Relaxed)
    }

    /// A range of `len` bytes in a free block. None without one. The bytes have values of earlier tensors.
    pub(super) fn reserve_block(&self, len: usize) -> Option<(OwnSlab, Box<dyn SegmentMut>)> {
        let mut slabs = lock(&self.slabs);
        let (number, segment, is_new) = slabs.blocks.reserve(len)?;
        let bytes = slabs.blocks.iter().find(|(known, _)| *known == number).map_or(0, |(_, block)| block.len());
        drop(slabs);
        if is_new {
            self.next_block.took_new(len);
        }
        Some((OwnSlab { number, is_block: true, bytes }, segment))
    }

    /// The length of a new block for `len` bytes; none when the client has enough blocks. Closes free ones that are in the way.
    pub(super) fn room_for_block(&self, session: &Session, len: usize) -> Result<Option<usize>> {
        let mut slabs = lock(&self.slabs);
        let room = slabs.blocks.room_for(len, Instant::now())?;
        let closed = room.map_or_else(Vec::new, |bytes| slabs.blocks.make_room(bytes));
        drop(slabs);
        self.close(session, closed.into_iter().map(closed_block));
        Ok(room)
    }

    /// Opens `block` in the session. Returns a range of `len` bytes in it.
    pub(super) fn open_block_in(
        &self,
        session: &Session,
        block: &Slab,
        len: usize,
    ) -> Result<(OwnSlab, Box<dyn SegmentMut>)> {
        let opened = open(session, block, true)?;
        let mut slabs = lock(&self.slabs);
        let number = slabs.next_number(session)?;
        let segment = slabs.blocks.add(number, block.clone(), len)?;
        self.freed.opened(session.generation, number, opened.slab, &opened.live);
        drop(slabs);
        self.next_block.took_new(len);
        Ok((OwnSlab { number, is_block: true, bytes: block.len() }, segment))
    }

    /// The length of a free block for a later tensor of `len` bytes; none when the client has enough of them.
    pub(super) fn room_for_free_block(&self, len: usize) -> Result<Option<usize>> {
        lock(&self.slabs).blocks.room_for_free(len)
    }

    /// Opens `block` in the session, for a later tensor. With `stays`, it is not given back before its first use.
    pub(super) fn open_free_block_in(&self, session: &Session, block: &Slab, stays: bool) -> Result<()> {
        let opened = open(session, block, true)?;
        let mut slabs = lock(&self.slabs);
        let own = slabs.next_number(session)?;
        slabs.blocks.add_free(own, block.clone(), stays);
        self.freed.opened(session.generation, own, opened.slab, &opened.live);
        Ok(())
    }

    /// Gives memory back that was not used for some seconds: blocks and slabs. False when none is left that is given back later.
    pub(super) fn give_back(&self, session: &Session) -> bool {
        let mut slabs = lock(&self.slabs);
        let blocks = slabs.blocks.take_idle(Instant::now());
        let mut idle = slabs.take_unused(|slab| std::mem::replace(&mut slab.was_unused, true));
        idle.extend(slabs.take_unused_on_host());
        let has_many_on_host = slabs.host_bytes() > STAYING_BYTES;
        self.has_many_on_host.store(has_many_on_host, Ordering::Relaxed);
        let has_others = slabs.open.iter().any(|slab| !slab.memory.device().is_host());
        let is_left = slabs.blocks.has_transient() || has_others || has_many_on_host;
        if !is_left {
            // Under the lock: the next block starts another thread.
            self.gives_back.end();
        }
        drop(slabs);
        self.close(session, blocks.into_iter().map(closed_block).chain(idle));
        is_left
    }

    /// Gives slabs on `device`, which is not the host, back that have no tensor. Whether there was one.
    pub(super) fn give_back_unused(&self, session: &Session, device: Device) -> bool {
        let unused = lock(&self.slabs).take_unused(|slab| slab.memory.device() == device);
        let found = !unused.is_empty();
        self.close(session, unused);
        found
    }

    fn close(&self, session: &Session, closed: impl IntoIterator<Item = (u64, Arc<dyn SlabMemory>)>) {
        for (own, slab) in closed {
            if let Some(slab) = self.freed.close(own) {
                session.notify::<p::CloseSlab>(&p::CloseSlabParams { slab });
            }
            drop(slab);
        }
    }

    /// A range of `len` bytes in an open slab on `device`. None without room. With `to_fill`, the bytes have values of earlier
    /// tensors; otherwise they are zero.
    pub(super) fn reserve(
        &self,
        device: Device,
        len: usize,
        to_fill: bool,
    ) -> Result<Option<(OwnSlab, Box<dyn SegmentMut>)>> {
        // The newest slab has the most room.
        for slab in lock(&self.slabs).open.iter_mut().rev().filter(|slab| slab.is_on(device)) {
            let memory = &slab.memory;
            match if to_fill { memory.reserve_unzeroed(len) } else { memory.reserve(len) } {
                Ok(segment) => {
                    slab.was_unused = false;
                    return Ok(Some((slab.place(), segment)));
                }
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The blocks without a tensor, but for those that stay until their first use.
    pub(super) fn unused(&self, now: Instant) -> Unused {
        lock(&self.slabs).blocks.unused(now)
    }

    /// Closes the one of them that was used least recently.
    pub(super) fn give_up_oldest(&self, session: &Session) {
        let oldest = lock(&self.slabs).blocks.take_oldest();
        self.close(session, oldest.map(closed_block));
    }

    /// Starts the session of `generation`, which has no slab yet.
    pub(super) fn begin(&self, generation: u64) {
        lock(&self.slabs).generation = generation;
        self.freed.begin(generation);
    }

    /// Retires all slabs and blocks: other processes may still read them, and no daemon reports the end of that.
    pub(super) fn retire(&self) {
        let mut slabs = lock(&self.slabs);
        slabs.retire_on_devices();
        let retired: Vec<_> = slabs.open.extract_if(.., |slab| !slab.is_retired || slab.memory.is_unused()).collect();
        slabs.blocks.retain(|_| false);
        drop(slabs);
        drop(retired);
        self.freed.lose(|_| true);
    }

    /// Opens every slab of host memory in a new session. A slab that the daemon refuses is retired, as are those on devices.
    ///
    /// # Errors
    /// The daemon's, when the session ends meanwhile.
    pub(super) fn reopen(&self, session: &Session) -> Result<()> {
        let mut slabs = lock(&self.slabs);
        let retired = slabs.retire_on_devices();
        let on_host = slabs.open.iter().filter(|slab| !slab.is_retired);
        let open_ones = on_host.map(|slab| (slab.number, Arc::clone(&slab.memory), false));
        let blocks =
            slabs.blocks.iter().map(|(own, block)| (own, Arc::new(block.clone()) as Arc<dyn SlabMemory>, true));
        let all: Vec<_> = open_ones.chain(blocks).collect();
        drop(slabs);
        self.freed.lose(|known| retired.contains(&known));
        for (own, slab, is_block) in all {
            match open(session, &*slab, is_block) {
                Ok(opened) => self.freed.opened(session.generation, own, opened.slab, &opened.live),
                Err(error) if session.connection.closed().is_some() => return Err(error),
                Err(_) => {
                    let mut slabs = lock(&self.slabs);
                    slabs.open.retain(|known| known.number != own);
                    slabs.blocks.retain(|known| known != own);
                    drop(slabs);
                    self.freed.lose(|known| known == own);
                }
            }
        }
        Ok(())
    }
}

impl OpenSlabs {
    /// The number of a new slab.
    ///
    /// # Errors
    /// When another session has replaced `session`.
    fn next_number(&mut self, session: &Session) -> Result<u64> {
        if self.generation != session.generation {
            return Err(session.replaced());
        }
        self.next += 1;
        Ok(self.next)
    }

    /// Retires the slabs on devices. Returns their numbers.
    fn retire_on_devices(&mut self) -> Vec<u64> {
        let on_devices = self.open.iter_mut().filter(|slab| !slab.memory.device().is_host());
        let retire = |slab: &mut OpenSlab| {
            slab.is_retired = true;
            slab.number
        };
        on_devices.map(retire).collect()
    }

    /// The bytes of all slabs of host memory.
    fn host_bytes(&self) -> usize {
        let on_host = self.open.iter().filter(|slab| slab.memory.device().is_host());
        on_host.map(|slab| slab.memory.size_bytes()).sum()
    }

    /// Takes out slabs of host memory that had no tensor in the round before, the oldest first, until the others have [`STAYING_BYTES`].
    fn take_unused_on_host(&mut self) -> Vec<(u64, Arc<dyn SlabMemory>)> {
        let mut bytes = self.host_bytes();
        let is_over = |slab: &mut OpenSlab| {
            let is_unused = slab.memory.device().is_host() && slab.memory.is_unused();
            let is_over = is_unused && std::mem::replace(&mut slab.was_unused, true) && bytes > STAYING_BYTES;
            bytes -= if is_over { slab.memory.size_bytes() } else { 0 };
            is_over
        };
        self.open.extract_if(.., is_over).map(|slab| (slab.number, slab.memory)).collect()
    }

    /// Takes out slabs on devices that have no tensor and for which `is_idle` is true.
    fn take_unused(&mut self, mut is_idle: impl FnMut(&mut OpenSlab) -> bool) -> Vec<(u64, Arc<dyn SlabMemory>)> {
        let is_over = |slab: &mut OpenSlab| !slab.memory.device().is_host() && slab.memory.is_unused() && is_idle(slab);
        self.open.extract_if(.., is_over).map(|slab| (slab.number, slab.memory)).collect()
    }
}

impl OpenSlab {
    fn place(&self) -> OwnSlab {
        OwnSlab { number: self.number, is_block: false, bytes: self.memory.size_bytes() }
    }

    /// Whether it gets tensors on `device`.
    fn is_on(&self, device: Device) -> bool {
        !self.is_retired && self.memory.device() == device && !self.memory.is_placed_by_owner()
    }
}

/// `len` rounded up to whole units of a slab on `device`, at least one: pages of the host, else what the device allocates.
pub(super) fn whole_units(device: Device, len: usize) -> usize {
    let len = len.max(1);
    if device.is_host() {
        return len.next_multiple_of(page_size());
    }
    usize::try_from(device.allocated_bytes(len as u64)).unwrap_or(usize::MAX)
}

fn closed_block((number, block): (u64, Slab)) -> (u64, Arc<dyn SlabMemory>) {
    (number, Arc::new(block))
}

fn open(session: &Session, slab: &dyn SlabMemory, block: bool) -> Result<p::SlabResult> {
    open_with(session, slab, duplicate_fd(slab.fd())?, block, None)
}

fn open_with(
    session: &Session,
    slab: &dyn SlabMemory,
    fd: OwnedFd,
    block: bool,
    reservation: Option<u64>,
) -> Result<p::SlabResult> {
    let params = p::SlabParams { bytes: slab.size_bytes() as u64, block, device: slab.device(), reservation };
    Ok(session.call_long::<p::OpenSlab>(&params, vec![fd])?.0)
}
