//! Slabs and blocks: host memory of tensors that this process publishes, used again.

use super::memories::descriptor_of;
use super::next_block::NextBlock;
use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Memory, Result, Segment, SegmentMut};
use cotensor_memory::process::duplicate_fd;
use cotensor_memory::{BlockLimits, Blocks, GiveBack, Slab, Unused};
use rustix::param::page_size;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Bytes of a client's first slab: room for a second small tensor beside one that stays. A slab that becomes empty
/// again and again would cost the supervisor an event each time.
const SLAB_BYTES_MIN: usize = 8 << 10;
/// The most bytes of a slab, unless one tensor needs more.
const SLAB_BYTES_MAX: usize = 4 << 20;

/// The slabs of this client, for small tensors, and its blocks, for one larger tensor each. They outlive the daemon: the client opens them
/// again in the next session.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Mutex<OpenSlabs>,
    freed: FreedRanges,
    /// The thread that gives idle blocks back.
    pub(super) gives_back: GiveBack,
    /// What makes the next block of a series.
    pub(super) next_block: NextBlock,
}

/// Slabs by numbers of this client, the newest last.
struct OpenSlabs {
    generation: u64,
    next: u64,
    open: Vec<(u64, Slab)>,
    blocks: Blocks<u64>,
}

impl Default for OpenSlabs {
    fn default() -> Self {
        Self { generation: 0, next: 0, open: Vec::new(), blocks: Blocks::new(BlockLimits::default()) }
    }
}

/// A slab of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnSlab {
    pub(super) number: u64,
    pub(super) is_block: bool,
}

/// Published ranges of slabs. A range is used again after the daemon reports that it has no leases.
#[derive(Clone, Default)]
pub(super) struct FreedRanges(Arc<Mutex<Ranges>>);

#[derive(Default)]
struct Ranges {
    generation: u64,
    /// This client's slab numbers by the session's.
    slabs: HashMap<u64, u64>,
    /// By this client's slab number and the offset.
    parts: HashMap<(u64, u64), Arc<dyn Segment>>,
    /// Notifications about slabs whose numbers are not known yet.
    early: Vec<p::FreedParams>,
}

impl FreedRanges {
    /// Handles a notification on the connection of `generation`.
    pub(super) fn add(&self, generation: u64, params: &p::FreedParams) {
        let mut published = lock(&self.0);
        if published.generation != generation {
            return;
        }
        let Some(&slab) = published.slabs.get(&params.slab) else {
            return published.early.push(params.clone());
        };
        let freed: Vec<_> = params.offsets.iter().map(|&offset| published.parts.remove(&(slab, offset))).collect();
        drop(published);
        drop(freed);
    }

    /// Starts the session of `generation`, which has no slab yet.
    fn begin(&self, generation: u64) {
        let mut published = lock(&self.0);
        published.generation = generation;
        published.slabs.clear();
        published.early.clear();
    }

    /// Registers the session's number of a slab whose live tensors are at the offsets `live`.
    fn opened(&self, slab: u64, number: u64, live: &[u64]) {
        let mut published = lock(&self.0);
        published.slabs.insert(number, slab);
        let early: Vec<p::FreedParams> = published.early.extract_if(.., |freed| freed.slab == number).collect();
        let freed = |offset: &u64| !live.contains(offset) || early.iter().any(|freed| freed.offsets.contains(offset));
        let gone: Vec<_> = published.parts.extract_if(|(known, offset), _| *known == slab && freed(offset)).collect();
        drop(published);
        drop(gone);
    }

    /// Keeps a published range until the daemon reports that it has no leases.
    pub(super) fn keep(&self, slab: u64, offset: u64, segment: &Arc<dyn Segment>) {
        lock(&self.0).parts.insert((slab, offset), Arc::clone(segment));
    }

    /// Releases a range that was not published.
    pub(super) fn release(&self, slab: u64, offset: u64) {
        let part = lock(&self.0).parts.remove(&(slab, offset));
        drop(part);
    }

    /// The session's number of the slab in which `range` lies. A slab that was retired with the last daemon is opened again for
    /// a range that was not published yet.
    pub(super) fn number(&self, session: &Session, slab: OwnSlab, range: &dyn Segment) -> Result<u64> {
        {
            let published = lock(&self.0);
            if published.generation != session.generation {
                return Err(session.replaced());
            }
            if let Some((number, _)) = published.slabs.iter().find(|(_, own)| **own == slab.number) {
                return Ok(*number);
            }
        }
        let whole = descriptor_of(range)?;
        let stat = rustix::fs::fstat(&whole).map_err(|error| Error::io("reading a slab's length", &error.into()))?;
        let params = p::SlabParams { bytes: stat.st_size.unsigned_abs(), block: slab.is_block, device: range.device() };
        let opened = session.call_long::<p::OpenSlab>(&params, vec![whole])?.0;
        self.opened(slab.number, opened.slab, &opened.live);
        Ok(opened.slab)
    }

    /// Releases the ranges of slabs that are not used again: those for which `is_lost` is true.
    fn lose(&self, is_lost: impl Fn(u64) -> bool) {
        let lost: Vec<_> = lock(&self.0).parts.extract_if(|(slab, _), _| is_lost(*slab)).collect();
        drop(lost);
    }

    /// Forgets a slab. Returns the session's number of it.
    fn close(&self, slab: u64) -> Option<u64> {
        let mut published = lock(&self.0);
        let number = published.slabs.iter().find(|(_, own)| **own == slab).map(|(number, _)| *number)?;
        published.slabs.remove(&number);
        Some(number)
    }
}

impl Slabs {
    pub(super) fn freed(&self) -> FreedRanges {
        self.freed.clone()
    }

    /// The least and the best number of bytes for a new slab that has room for `len` bytes.
    ///
    /// A slab is allocated and counted in full until its last tensor is freed, often long after this client. So the
    /// first slab is small, and each further one is as long as all slabs together. A client takes at most about
    /// twice what it publishes, and a client that publishes much has few slabs.
    pub(super) fn next_bytes(&self, len: usize) -> (usize, usize) {
        let all: usize = lock(&self.slabs).open.iter().map(|(_, slab)| slab.len()).sum();
        (whole_pages(len), whole_pages(all.clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).max(len)))
    }

    /// Opens `slab`, a new one, in the session. Returns its number and a range of `len` bytes.
    pub(super) fn open_in(&self, session: &Session, slab: &Slab, len: usize) -> Result<(u64, Box<dyn SegmentMut>)> {
        let opened = open(session, slab, false)?;
        let mut slabs = lock(&self.slabs);
        let own = slabs.next_number(session)?;
        let segment = slab.reserve(len)?;
        slabs.open.push((own, slab.clone()));
        self.freed.opened(own, opened.slab, &opened.live);
        Ok((own, segment))
    }

    /// A range of `len` bytes in a free block, with the number of the block. None without one. The bytes have values of earlier tensors.
    pub(super) fn reserve_block(&self, len: usize) -> Option<(u64, Box<dyn SegmentMut>)> {
        let reserved = lock(&self.slabs).blocks.reserve(len);
        let (own, segment, is_new) = reserved?;
        if is_new {
            self.next_block.took_new(len);
        }
        Some((own, segment))
    }

    /// The length of a new block for `len` bytes; none when the client has enough blocks. Closes free ones that are in the way.
    pub(super) fn room_for_block(&self, session: &Session, len: usize) -> Result<Option<usize>> {
        let mut slabs = lock(&self.slabs);
        let room = slabs.blocks.room_for(len, Instant::now())?;
        let closed = room.map_or_else(Vec::new, |bytes| slabs.blocks.make_room(bytes));
        drop(slabs);
        self.close_blocks(session, closed);
        Ok(room)
    }

    /// Opens `block` in the session. Returns its number and a range of `len` bytes.
    pub(super) fn open_block_in(
        &self,
        session: &Session,
        block: &Slab,
        len: usize,
    ) -> Result<(u64, Box<dyn SegmentMut>)> {
        let opened = open(session, block, true)?;
        let mut slabs = lock(&self.slabs);
        let own = slabs.next_number(session)?;
        let segment = slabs.blocks.add(own, block.clone(), len)?;
        self.freed.opened(own, opened.slab, &opened.live);
        drop(slabs);
        self.next_block.took_new(len);
        Ok((own, segment))
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
        self.freed.opened(own, opened.slab, &opened.live);
        Ok(())
    }

    /// Gives blocks back that were not used for some seconds. False when none is left that was used.
    pub(super) fn give_back(&self, session: &Session) -> bool {
        let mut slabs = lock(&self.slabs);
        let idle = slabs.blocks.take_idle(Instant::now());
        let is_left = slabs.blocks.has_transient();
        if !is_left {
            // Under the lock: the next block starts another thread.
            self.gives_back.end();
        }
        drop(slabs);
        self.close_blocks(session, idle);
        is_left
    }

    fn close_blocks(&self, session: &Session, closed: Vec<(u64, Slab)>) {
        for (own, slab) in closed {
            if let Some(slab) = self.freed.close(own) {
                session.notify::<p::CloseSlab>(&p::CloseSlabParams { slab });
            }
            drop(slab);
        }
    }

    /// A range of `len` bytes in an open slab, with the slab's number. None without room. With `to_fill`, the bytes have values of earlier
    /// tensors; otherwise they are zero.
    pub(super) fn reserve(&self, len: usize, to_fill: bool) -> Result<Option<(u64, Box<dyn SegmentMut>)>> {
        let reserve = if to_fill { Slab::reserve_unzeroed } else { <Slab as Memory>::reserve };
        // The newest slab has the most room.
        for (own, slab) in lock(&self.slabs).open.iter().rev() {
            match reserve(slab, len) {
                Ok(segment) => return Ok(Some((*own, segment))),
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
        self.close_blocks(session, oldest.into_iter().collect());
    }

    /// Starts the session of `generation`, which has no slab yet.
    pub(super) fn begin(&self, generation: u64) {
        lock(&self.slabs).generation = generation;
        self.freed.begin(generation);
    }

    /// Retires all slabs and blocks: other processes may still read them, and no daemon reports the end of that.
    pub(super) fn retire(&self) {
        let mut slabs = lock(&self.slabs);
        let retired = std::mem::take(&mut slabs.open);
        slabs.blocks.retain(|_| false);
        drop(slabs);
        drop(retired);
        self.freed.lose(|_| true);
    }

    /// Opens every slab in a new session. A slab that the daemon refuses is retired.
    ///
    /// # Errors
    /// The daemon's, when the session ends meanwhile.
    pub(super) fn reopen(&self, session: &Session) -> Result<()> {
        let slabs = lock(&self.slabs);
        let open_ones = slabs.open.iter().map(|(own, slab)| (*own, slab.clone(), false));
        let blocks = slabs.blocks.iter().map(|(own, slab)| (own, slab.clone(), true));
        let all: Vec<_> = open_ones.chain(blocks).collect();
        drop(slabs);
        for (own, slab, is_block) in all {
            match open(session, &slab, is_block) {
                Ok(opened) => self.freed.opened(own, opened.slab, &opened.live),
                Err(error) if session.connection.closed().is_some() => return Err(error),
                Err(_) => {
                    let mut slabs = lock(&self.slabs);
                    slabs.open.retain(|(known, _)| *known != own);
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
}

/// `len` rounded up to whole pages, at least one.
pub(super) fn whole_pages(len: usize) -> usize {
    len.max(1).next_multiple_of(page_size())
}

fn open(session: &Session, slab: &Slab, block: bool) -> Result<p::SlabResult> {
    let params = p::SlabParams { bytes: slab.len() as u64, block, device: slab.device() };
    Ok(session.call_long::<p::OpenSlab>(&params, vec![duplicate_fd(slab.fd())?])?.0)
}
