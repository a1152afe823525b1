//! Small tensors in memory that both ends of a connection map.
//!
//! A published tensor costs its producer and its reader one request to the daemon each, which takes longer than copying
//! a small tensor. A tensor in the arena costs no request. The sender writes it into a [`Slab`] of the connection; the
//! receiver got the slab's descriptor once, and a message names the range. The receiver announces ranges that it no
//! longer reads in its next message, and the sender does not reuse a range before that. After the connection ends, its
//! slabs are never written again, so readers keep their bytes.
//!
//! Tensors in an arena are not tensors of the store: the daemon neither counts nor lists them. The limits below bound
//! their memory; other tensors are published.

use crate::sender::Sender;
use cotensor_client::ClientStore;
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider as p;
use cotensor_core::sync::lock;
use cotensor_core::{DType, Device, Error, MemoryKind, Result, Segment, range_within};
use cotensor_memory::{Guarantee, SealedMemfd, Slab, check_no_holes, check_sealed};
use cotensor_rpc as rpc;
use cotensor_store::{Holder, Lease, TensorSpec};
use rustix::param::page_size;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The largest tensor in an arena, in bytes.
const TENSOR_BYTES_MAX: usize = 1 << 20;
/// The smallest slab, in bytes. Each further slab is as large as all slabs before it together.
const SLAB_BYTES_MIN: usize = 64 << 10;
/// The most bytes of all slabs of one end.
const ARENA_BYTES_MAX: usize = 16 << 20;
/// The most slabs of the other end.
const REMOTE_SLABS_MAX: usize = 64;
/// The most released ranges that wait for the next message.
const RELEASED_MAX: usize = 32;
/// The most released ranges in one message.
const RELEASED_PER_MESSAGE_MAX: usize = 4096;

/// One end of a connection's shared memory: slabs that this end writes, and slabs of the other end that it reads.
#[derive(Default)]
pub(crate) struct ConnectionArena {
    /// Whether the other end reads at any time, so that released ranges can be announced in messages of their own.
    other_end_reads: bool,
    sender: OnceLock<Weak<dyn Sender>>,
    local: Mutex<LocalSlabs>,
    /// Slabs of the other end, by number.
    remote: Mutex<HashMap<u64, Arc<SealedMemfd>>>,
    /// Ranges of the other end that this end no longer reads and has not announced.
    released: Mutex<Vec<p::ArenaRange>>,
}

/// The slabs that this end writes.
#[derive(Default)]
struct LocalSlabs {
    /// The index is the slab's number.
    slabs: Vec<Slab>,
    /// Ranges that the other end reads, and how often each was sent.
    sent: HashMap<p::ArenaRange, (Lease, usize)>,
}

impl ConnectionArena {
    /// An arena whose other end reads at any time.
    pub(crate) fn with_reader() -> Self {
        Self { other_end_reads: true, ..Self::default() }
    }

    /// Sets the sender of the connection.
    pub(crate) fn set_sender(&self, sender: Weak<dyn Sender>) {
        drop(self.sender.set(sender));
    }

    fn notify<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>) -> Result<()> {
        let sender = self.sender.get().and_then(Weak::upgrade);
        let sender = sender.ok_or_else(|| Error::new(cotensor_core::ErrorKind::Io, "the connection has ended"))?;
        sender.send_message(rpc::encode_call(None, M::NAME, params)?, fds)
    }

    /// Memory for a tensor of `len` bytes, not zeroed. `None` when the tensor is too large or the arena is full.
    pub(crate) fn reserve(&self, len: usize) -> Result<Option<Box<dyn cotensor_core::SegmentMut>>> {
        if len > TENSOR_BYTES_MAX {
            return Ok(None);
        }
        let mut local = lock(&self.local);
        let found = local.slabs.iter().find_map(|slab| slab.reserve_unzeroed(len).ok());
        if found.is_some() {
            return Ok(found);
        }
        let all: usize = local.slabs.iter().map(Slab::len).sum();
        let bytes = all.max(SLAB_BYTES_MIN).max((2 * len).next_multiple_of(page_size()));
        if all + bytes > ARENA_BYTES_MAX {
            return Ok(None);
        }
        let slab = Slab::create(bytes)?;
        let fd = slab.fd().try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        // Sent under the lock: no message names the slab before this one.
        self.notify::<p::OpenSlab>(
            &p::OpenSlabParams { slab: local.slabs.len() as u64, bytes: bytes as u64 },
            vec![fd],
        )?;
        let segment = slab.reserve_unzeroed(len)?;
        local.slabs.push(slab);
        Ok(Some(segment))
    }

    /// A reference to a tensor of this arena, for a message. The range stays reserved until the other end releases it.
    /// `None` for a tensor that is not in this arena.
    pub(crate) fn reference(&self, lease: &Lease) -> Option<p::ArenaTensorRef> {
        let fd = lease.segment().fd()?.as_raw_fd();
        let mut local = lock(&self.local);
        let slab = local.slabs.iter().position(|slab| slab.fd().as_raw_fd() == fd)? as u64;
        let range = p::ArenaRange { slab, offset: lease.segment().fd_offset() as u64 };
        match local.sent.entry(range) {
            Entry::Occupied(mut sent) => sent.get_mut().1 += 1,
            Entry::Vacant(vacant) => drop(vacant.insert((lease.try_clone().ok()?, 1))),
        }
        let (name, dtype) = (lease.name().to_owned(), lease.dtype().name().to_owned());
        Some(p::ArenaTensorRef { range, name, dtype, shape: lease.shape().to_vec() })
    }

    /// Handles a notification of the other end. Closes the connection when a slab cannot be opened: its tensors could
    /// not be read.
    pub(crate) fn on_notification(&self, method: &str, params: &str, fds: Vec<OwnedFd>) {
        if self.on_message(method, params, fds).is_err()
            && let Some(sender) = self.sender.get().and_then(Weak::upgrade)
        {
            sender.close();
        }
    }

    /// Handles a message of the other end about the arena; ignores other methods.
    ///
    /// # Errors
    /// As [`open_slab`](Self::open_slab); `Invalid` for malformed parameters.
    pub(crate) fn on_message(&self, method: &str, params: &str, fds: Vec<OwnedFd>) -> Result<()> {
        let malformed = |error: serde_json::Error| Error::invalid(format!("{method}: {error}"));
        match method {
            p::OpenSlab::NAME => {
                let fd = fds.into_iter().next().ok_or_else(|| Error::invalid("a slab without its descriptor"))?;
                self.open_slab(&serde_json::from_str(params).map_err(malformed)?, fd)
            }
            p::ReleaseRanges::NAME => {
                let params: p::ReleaseRangesParams = serde_json::from_str(params).map_err(malformed)?;
                self.reclaim(&params.ranges);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Maps a slab of the other end.
    ///
    /// # Errors
    /// `Refused` for memory that is not sealed; `Conflict` for a slab that is open, or one too many.
    pub(crate) fn open_slab(&self, params: &p::OpenSlabParams, fd: OwnedFd) -> Result<()> {
        let len = usize::try_from(params.bytes).map_err(|_| Error::invalid("a slab beyond the address space"))?;
        check_sealed(&fd, len, Guarantee::ProducerOnly)?;
        check_no_holes(&fd, len)?;
        let slab = Arc::new(SealedMemfd::open(fd, len, Guarantee::ProducerOnly)?);
        let mut remote = lock(&self.remote);
        if remote.len() >= REMOTE_SLABS_MAX || remote.contains_key(&params.slab) {
            let message = format!("slab {} is open already, or more than {REMOTE_SLABS_MAX} slabs", params.slab);
            return Err(Error::new(cotensor_core::ErrorKind::Conflict, message));
        }
        remote.insert(params.slab, slab);
        Ok(())
    }

    /// Leases a tensor in a slab of the other end. Dropping the last lease releases the range.
    pub(crate) fn lease(
        self: &Arc<Self>,
        reference: &p::ArenaTensorRef,
        store: &ClientStore,
        holder: &Holder,
    ) -> Result<Lease> {
        let slab = lock(&self.remote).get(&reference.range.slab).cloned();
        let slab = slab.ok_or_else(|| Error::not_found(format!("slab {} is not open", reference.range.slab)))?;
        let spec = TensorSpec::new(reference.name.as_str(), reference.dtype.parse::<DType>()?, &reference.shape);
        spec.check_names()?;
        let layout = spec.layout()?;
        let start = usize::try_from(reference.range.offset).map_err(|_| Error::invalid("an offset beyond the slab"))?;
        let range = range_within(start, layout.size_bytes(), slab.len())?;
        let segment = RemoteRange { part: slab.slice(range)?, range: reference.range, arena: Arc::downgrade(self) };
        store.keep_private(spec, layout, Arc::new(segment), holder)
    }

    /// Frees ranges that the other end released. Ignores ranges that were not sent.
    pub(crate) fn reclaim(&self, ranges: &[p::ArenaRange]) {
        let mut local = lock(&self.local);
        let mut free = Vec::new();
        for range in ranges {
            let Some((_, count)) = local.sent.get_mut(range) else { continue };
            *count -= 1;
            if *count == 0 {
                free.extend(local.sent.remove(range));
            }
        }
        drop(local);
        drop(free);
    }

    /// Takes the released ranges to announce in the next message.
    pub(crate) fn take_released(&self) -> Vec<p::ArenaRange> {
        let mut released = lock(&self.released);
        let count = released.len().min(RELEASED_PER_MESSAGE_MAX);
        released.drain(..count).collect()
    }

    fn release(&self, range: p::ArenaRange) {
        let all = {
            let mut released = lock(&self.released);
            released.push(range);
            // A caller reads its socket only while it waits for an answer: unread notifications would fill the socket.
            if !self.other_end_reads || released.len() < RELEASED_MAX {
                return;
            }
            std::mem::take(&mut *released)
        };
        let params = p::ReleaseRangesParams { ranges: all };
        if self.notify::<p::ReleaseRanges>(&params, Vec::new()).is_err() {
            self.release_later(&params.ranges);
        }
    }

    /// Puts released ranges back whose announcement was not sent.
    pub(crate) fn release_later(&self, ranges: &[p::ArenaRange]) {
        lock(&self.released).extend_from_slice(ranges);
    }
}

/// A range of a slab of the other end. Dropping it releases the range.
struct RemoteRange {
    part: Arc<dyn Segment>,
    range: p::ArenaRange,
    arena: Weak<ConnectionArena>,
}

impl Drop for RemoteRange {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.upgrade() {
            arena.release(self.range);
        }
    }
}

impl Segment for RemoteRange {
    fn len(&self) -> usize {
        self.part.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.part.as_any()
    }

    fn device(&self) -> Device {
        self.part.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.part.bytes()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.part.fd()
    }

    fn fd_offset(&self) -> usize {
        self.part.fd_offset()
    }
}
