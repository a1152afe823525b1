//! Memory that this process makes for what it publishes.

use super::link::{Link, Live};
use super::{ClientStore, lock};
use crate::protocol::{self as p, Published, Spec};
use cotensor_core::{Error, ErrorKind, Memory, Result, Segment, SegmentMut};
use cotensor_memory::process::duplicate_fd;
use cotensor_memory::{MemfdPool, Slab};
use cotensor_store::TensorSpec;
use rustix::param::page_size;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Bytes of a client's first slab: room for a second small tensor beside one that stays, because a slab that is empty again and
/// again is news to the supervisor each time.
const SLAB_BYTES_MIN: usize = 8 << 10;
/// Bytes of a slab at most, unless one tensor needs more.
const SLAB_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait warm for the next large tensor.
const POOL_BYTES_MAX: usize = 1 << 30;

/// The slabs of this client, for small tensors. They outlive the daemon: the next one is told of each.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Mutex<Opened>,
    freed: Freed,
    pub(super) pool: Pool,
}

/// By numbers of this client's own, the newest last.
#[derive(Default)]
struct Opened {
    generation: u64,
    next: u64,
    open: Vec<(u64, Slab)>,
}

/// Memory for large tensors.
pub(super) struct Pool(MemfdPool);

impl Default for Pool {
    fn default() -> Self {
        Self(MemfdPool::new(POOL_BYTES_MAX))
    }
}

impl Pool {
    pub(super) fn memory(&self) -> &dyn Memory {
        &self.0
    }
}

/// Published ranges of slabs, which are not used again before the daemon says that nobody leases them.
#[derive(Clone, Default)]
pub(super) struct Freed(Arc<Mutex<Ranges>>);

#[derive(Default)]
struct Ranges {
    generation: u64,
    /// This client's numbers of slabs by the session's.
    slabs: HashMap<u64, u64>,
    /// By this client's number of the slab, and the offset.
    parts: HashMap<(u64, u64), Arc<dyn Segment>>,
    /// What was said of slabs before their numbers were known.
    early: Vec<p::FreedParams>,
}

impl Freed {
    /// The daemon said so, on the connection of `generation`.
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

    /// The session of `generation` has no slab yet.
    fn leave(&self, generation: u64) {
        let mut published = lock(&self.0);
        published.generation = generation;
        published.slabs.clear();
        published.early.clear();
    }

    /// The session knows a slab, in which it has tensors at the offsets `live` and nowhere else.
    fn opened(&self, slab: u64, number: u64, live: &[u64]) {
        let mut published = lock(&self.0);
        published.slabs.insert(number, slab);
        let early: Vec<p::FreedParams> = published.early.extract_if(.., |freed| freed.slab == number).collect();
        let freed = |offset: &u64| !live.contains(offset) || early.iter().any(|freed| freed.offsets.contains(offset));
        let gone: Vec<_> = published.parts.extract_if(|(known, offset), _| *known == slab && freed(offset)).collect();
        drop(published);
        drop(gone);
    }

    /// The session's number of a slab.
    fn number(&self, live: &Live, slab: u64) -> Result<u64> {
        let published = lock(&self.0);
        if published.generation != live.generation {
            return Err(live.outlived());
        }
        let number = published.slabs.iter().find(|(_, own)| **own == slab).map(|(number, _)| *number);
        number.ok_or_else(|| Error::new(ErrorKind::Conflict, "the daemon did not take this slab over"))
    }
}

impl Slabs {
    pub(super) fn freed(&self) -> Freed {
        self.freed.clone()
    }

    /// A range of a slab, of a new one if it must be.
    ///
    /// A slab is counted, and held, in full until the last tensor in it is gone, who knows how long after this client: so the
    /// first is small, and each further one as long as all that there are. A client takes at most about twice
    /// what it publishes, and one that publishes much soon has few slabs for it.
    pub(super) fn place(&self, store: &ClientStore, len: usize) -> Result<(Place, Box<dyn SegmentMut>)> {
        if let Some(found) = self.range(len)? {
            return Ok(found);
        }
        let all: usize = lock(&self.slabs).open.iter().map(|(_, slab)| slab.len()).sum();
        let (least, mut bytes) = (whole_pages(len), whole_pages(all.clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).max(len)));
        loop {
            match self.grow(store, bytes, len) {
                // Room for less will do.
                Err(error) if error.kind() == ErrorKind::OverBudget && bytes > least => {
                    bytes = whole_pages((bytes / 2).max(len));
                }
                outcome => return outcome,
            }
        }
    }

    /// A range of a new slab of `bytes` bytes.
    fn grow(&self, store: &ClientStore, bytes: usize, len: usize) -> Result<(Place, Box<dyn SegmentMut>)> {
        let slab = Slab::create(bytes)?;
        store.attempt(|live| {
            let opened = open(live, &slab)?;
            let mut slabs = lock(&self.slabs);
            if slabs.generation != live.generation {
                return Err(live.outlived());
            }
            slabs.next += 1;
            let own = slabs.next;
            let segment = slab.reserve(len)?;
            slabs.open.push((own, slab.clone()));
            self.freed.opened(own, opened.slab, &opened.live);
            Ok((Place::Slab(own), segment))
        })
    }

    /// A range of a slab that is open.
    fn range(&self, len: usize) -> Result<Option<(Place, Box<dyn SegmentMut>)>> {
        // The newest is the emptiest.
        for (own, slab) in lock(&self.slabs).open.iter().rev() {
            match slab.reserve(len) {
                Ok(segment) => return Ok(Some((Place::Slab(*own), segment))),
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The session of `generation` has no slab yet.
    pub(super) fn leave(&self, generation: u64) {
        lock(&self.slabs).generation = generation;
        self.freed.leave(generation);
    }

    /// What lies in these slabs others may read still, and no daemon says when they no longer do: never used again.
    pub(super) fn retire(&self) {
        let retired = std::mem::take(&mut lock(&self.slabs).open);
        drop(retired);
    }

    /// Opens every slab in the session of `live`.
    ///
    /// # Errors
    /// When that ends meanwhile. A slab that it refuses is not used any more.
    pub(super) fn reopen(&self, live: &Live) -> Result<()> {
        let slabs = lock(&self.slabs).open.clone();
        for (own, slab) in slabs {
            match open(live, &slab) {
                Ok(opened) => self.freed.opened(own, opened.slab, &opened.live),
                Err(error) if live.connection.closed().is_some() => return Err(error),
                Err(_) => lock(&self.slabs).open.retain(|(known, _)| *known != own),
            }
        }
        Ok(())
    }
}

/// The bytes of the pages that `len` bytes lie in, one at least: memory comes in pages.
fn whole_pages(len: usize) -> usize {
    len.max(1).next_multiple_of(page_size())
}

fn open(live: &Live, slab: &Slab) -> Result<p::SlabResult> {
    let fd = duplicate_fd(slab.fd())?;
    Ok(live.call_long::<p::OpenSlab>(&p::SlabParams { bytes: slab.len() as u64 }, vec![fd])?.0)
}

/// Where an unpublished tensor lies, as the daemon knows it.
pub(super) enum Place {
    /// In one of the slabs, by this client's number.
    Slab(u64),
    /// In memory of its own, for which the daemon has reserved.
    Own(Reserved),
}

/// A reservation of a session's, given back unless it is published.
pub(super) struct Reserved {
    number: u64,
    generation: u64,
    link: Arc<Link>,
    published: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let live = self.link.live();
        if !self.published && live.generation == self.generation {
            live.tell::<p::Discard>(&p::ReservationParams { reservation: self.number });
        }
    }
}

/// How a tensor is published.
pub(super) struct Terms {
    /// Under whose name it is leased to this process.
    pub(super) holder: String,
    /// The claim whose result it is part of.
    pub(super) ticket: Option<u64>,
    /// What was copied to make it, and what else there is to say of copies.
    pub(super) copies: Vec<p::CopyParams>,
}

impl Place {
    /// Memory of its own for a tensor, made by `memory` if the daemon has room for it.
    pub(super) fn reserved(
        store: &ClientStore,
        params: &p::ReserveParams,
        memory: impl FnOnce(&dyn Memory) -> Result<Box<dyn SegmentMut>>,
    ) -> Result<(Self, Box<dyn SegmentMut>)> {
        let (number, generation) = store.attempt(|live| Ok((reserve(live, params)?, live.generation)))?;
        let reserved = Reserved { number, generation, link: Arc::clone(&store.link), published: false };
        Ok((Self::Own(reserved), memory(store.slabs.pool.memory())?))
    }

    /// Publishes what `segment` holds now, in the session of `live`. Can be called again in another.
    pub(super) fn publish(
        &mut self,
        live: &Live,
        slabs: &Slabs,
        spec: &TensorSpec,
        segment: &Arc<dyn Segment>,
        Terms { holder, ticket, copies }: Terms,
    ) -> Result<Published> {
        let described = Spec::from(spec);
        match self {
            Self::Own(reserved) => {
                if reserved.generation != live.generation {
                    reserved.number = reserve(live, &p::ReserveParams { spec: described, holder })?;
                    reserved.generation = live.generation;
                }
                let params = p::PublishParams { reservation: reserved.number, ticket, copies };
                reserved.published = true;
                Ok(live.call::<p::Publish>(&params, vec![descriptor_of(&**segment)?])?.0)
            }
            Self::Slab(own) => {
                let (offset, slab) = (segment.fd_offset() as u64, slabs.freed.number(live, *own)?);
                // Kept before anybody is told: the daemon may say at once that nobody leases it.
                lock(&slabs.freed.0).parts.insert((*own, offset), Arc::clone(segment));
                let params = p::PublishSlabParams { slab, offset, spec: described, holder, ticket, copies };
                let published = live.call::<p::PublishSlab>(&params, Vec::new());
                // Without an answer it may be published: the next session knows.
                if published.is_err() && live.connection.closed().is_none() {
                    lock(&slabs.freed.0).parts.remove(&(*own, offset));
                }
                Ok(published?.0)
            }
        }
    }
}

fn reserve(live: &Live, params: &p::ReserveParams) -> Result<u64> {
    Ok(live.call_long::<p::Reserve>(params, Vec::new())?.0.reservation)
}

/// A descriptor of a segment, to send.
pub(super) fn descriptor_of(segment: &dyn Segment) -> Result<OwnedFd> {
    let fd = segment.fd().ok_or_else(|| Error::unsupported("this memory has no descriptor"))?;
    duplicate_fd(fd)
}
