//! Tensors in memory that both ends of a connection map.
//!
//! A published tensor costs its producer and its reader one request to the daemon each. A tensor in the arena costs no
//! request. The sender writes it into a [`Slab`] of the connection: a small one into a slab that many share, a larger
//! one into a block, which is a slab of one tensor. The receiver got the slab's descriptor once, and a message names the
//! range. The receiver announces ranges that it no longer reads, and the sender does not reuse a range before that.
//! After the connection ends, its slabs are never written again, so readers keep their bytes.
//!
//! A slab that was not used for some seconds is given back: its sender closes it, and the receiver unmaps it. That, and
//! the use of blocks, is possible only if the other end closes slabs, which it says by `arena.close` without a slab.
//!
//! Tensors in an arena are not tensors of the store: the daemon neither counts nor lists them. Limits bound their
//! memory; other tensors are published.

mod local;
mod ready;
mod remote;
#[cfg(test)]
mod tests;

use crate::sender::Sender;
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider as p;
use cotensor_client::{ClientStore, KeepsMemory};
use cotensor_core::sync::lock;
use cotensor_core::{DType, Error, ErrorKind, Result, Segment, SegmentMut, range_within};
use cotensor_memory::{BLOCK_BYTES_MAX, GiveBack, Slab, Unused};
use cotensor_rpc as rpc;
use cotensor_store::{Holder, Lease, TensorSpec};
use local::{LocalSlabs, block_len};
use ready::ReadyMemory;
use remote::{Release, RemoteRange, RemoteSlabs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The largest tensor in a shared slab, in bytes, if larger ones lie in blocks.
const SHARED_BYTES_MAX: usize = 256 << 10;
/// The largest tensor in a shared slab, in bytes, if the other end closes no slabs: there are no blocks then.
const SHARED_BYTES_MAX_WITHOUT_BLOCKS: usize = 1 << 20;
/// The most released ranges that wait for the next message.
const RELEASED_MAX: usize = 32;
/// The most released ranges in one message.
const RELEASED_PER_MESSAGE_MAX: usize = 4096;
/// How long a slab is not used before it is given back. With the intervals at which both ends look for such slabs and
/// announce released ranges, one second each, its memory is free within ten seconds.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);

/// One end of a connection's shared memory: slabs that this end writes, and slabs of the other end that it reads.
pub(crate) struct ConnectionArena {
    /// Whether this is the caller's end. The provider reads its messages at any time. The caller reads while it waits for
    /// an answer, and from time to time while there are slabs.
    is_caller: bool,
    /// How long a slab is not used before it is given back.
    idle_max: Duration,
    /// Whether the other end closes slabs.
    other_end_closes: AtomicBool,
    /// Whether the other end knows that this one closes slabs.
    has_announced: AtomicBool,
    sender: OnceLock<Weak<dyn Sender>>,
    local: Mutex<LocalSlabs>,
    remote: Mutex<RemoteSlabs>,
    /// Ranges of the other end that this end no longer reads and has not announced.
    released: Mutex<Vec<p::ArenaRange>>,
    /// The thread of the caller.
    gives_back: GiveBack,
    /// The bytes of the slabs that this end writes, as the daemon shows them.
    ready: ReadyMemory,
}

impl ConnectionArena {
    /// The arena of a provider's connection. The provider's timer calls [`give_back`](Self::give_back).
    pub(crate) fn of_provider(store: &Arc<ClientStore>, idle_max: Duration) -> Arc<Self> {
        Self::new(false, store, idle_max)
    }

    /// The arena of a caller's connection.
    pub(crate) fn of_caller(store: &Arc<ClientStore>, idle_max: Duration) -> Arc<Self> {
        Self::new(true, store, idle_max)
    }

    fn new(is_caller: bool, store: &Arc<ClientStore>, idle_max: Duration) -> Arc<Self> {
        let arena = Arc::new(Self {
            is_caller,
            idle_max,
            other_end_closes: AtomicBool::new(false),
            has_announced: AtomicBool::new(false),
            sender: OnceLock::new(),
            local: Mutex::new(LocalSlabs::new(idle_max)),
            remote: Mutex::default(),
            released: Mutex::default(),
            gives_back: GiveBack::default(),
            ready: ReadyMemory::new(store),
        });
        store.add_kept_memory(Arc::downgrade(&arena) as Weak<dyn KeepsMemory>);
        arena
    }

    /// Sets the sender of the connection. A caller's end announces that it closes slabs.
    pub(crate) fn set_sender(&self, sender: Weak<dyn Sender>) {
        let _ = self.sender.set(sender);
        if self.is_caller {
            self.announce();
        }
    }

    fn sender(&self) -> Option<Arc<dyn Sender>> {
        self.sender.get().and_then(Weak::upgrade)
    }

    fn notify<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>) -> Result<()> {
        let sender = self.sender().ok_or_else(|| Error::new(ErrorKind::Io, "the connection has ended"))?;
        sender.send_message(rpc::encode_call(None, M::NAME, params)?, fds)
    }

    /// Tells the other end, once, that this one closes slabs.
    fn announce(&self) {
        if !self.has_announced.swap(true, Ordering::Relaxed) {
            // A connection that has ended needs no blocks.
            let _ = self.notify::<p::CloseSlabs>(&p::CloseSlabsParams { slabs: Vec::new() }, Vec::new());
        }
    }

    /// Memory for a tensor of `len` bytes, not zeroed. `None` when the tensor is too large or the arena is full.
    pub(crate) fn reserve(self: &Arc<Self>, len: usize) -> Result<Option<Box<dyn SegmentMut>>> {
        let has_blocks = self.other_end_closes.load(Ordering::Relaxed);
        match len {
            0..=SHARED_BYTES_MAX => self.reserve_shared(len),
            0..=SHARED_BYTES_MAX_WITHOUT_BLOCKS if !has_blocks => self.reserve_shared(len),
            0..=BLOCK_BYTES_MAX if has_blocks => self.reserve_block(len),
            _ => Ok(None),
        }
    }

    fn reserve_shared(self: &Arc<Self>, len: usize) -> Result<Option<Box<dyn SegmentMut>>> {
        let mut local = lock(&self.local);
        if let Some(segment) = local.reserve_shared(len) {
            return Ok(Some(segment));
        }
        let Some(bytes) = local.room_for_shared(len) else { return Ok(None) };
        let slab = Slab::create(bytes)?;
        let number = self.open(&mut local, &slab, false)?;
        let segment = slab.reserve_unzeroed(len)?;
        local.add_shared(number, slab);
        self.ready.set(local.bytes());
        self.start_giving_back();
        Ok(Some(segment))
    }

    fn reserve_block(self: &Arc<Self>, len: usize) -> Result<Option<Box<dyn SegmentMut>>> {
        let room = {
            let mut local = lock(&self.local);
            if let Some((_, segment, _)) = local.blocks.reserve(len) {
                return Ok(Some(segment));
            }
            local.blocks.room_for(block_len(len), Instant::now())?
        };
        let Some(bytes) = room else { return Ok(None) };
        // Without the lock: this takes longer than writing the tensor, and other tensors need no new block.
        let block = Slab::create(bytes)?;
        block.prefault()?;
        let mut local = lock(&self.local);
        // Another thread may have taken the room.
        if local.blocks.room_for(bytes, Instant::now())?.is_none() {
            return Ok(None);
        }
        let in_the_way = local.blocks.make_room(bytes);
        self.close(&in_the_way)?;
        let number = self.open(&mut local, &block, true)?;
        let segment = local.blocks.add(number, block, len)?;
        self.ready.set(local.bytes());
        self.start_giving_back();
        Ok(Some(segment))
    }

    /// Opens a slab at the other end. Returns its number. `local` is locked: no message names the slab before this one, and
    /// the other end sees slabs opened and closed in the order in which the limits count them.
    fn open(&self, local: &mut LocalSlabs, slab: &Slab, block: bool) -> Result<u64> {
        let fd = slab.fd().try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        let number = local.next_number();
        self.notify::<p::OpenSlab>(&p::OpenSlabParams { slab: number, bytes: slab.len() as u64, block }, vec![fd])?;
        Ok(number)
    }

    /// Closes slabs at the other end. The arena is locked, as for [`open`](Self::open).
    fn close(&self, closed: &[(u64, Slab)]) -> Result<()> {
        if closed.is_empty() {
            return Ok(());
        }
        let slabs = closed.iter().map(|(number, _)| *number).collect();
        self.notify::<p::CloseSlabs>(&p::CloseSlabsParams { slabs }, Vec::new())
    }

    /// Announces released ranges, and gives slabs back that were not used for some seconds. Returns whether either end has
    /// slabs. Without an end that closes them, they stay.
    pub(crate) fn give_back(&self, now: Instant) -> bool {
        if !self.other_end_closes.load(Ordering::Relaxed) {
            return false;
        }
        // The provider reads at any time, and a caller with slabs from time to time.
        if self.is_caller || lock(&self.remote).has_slabs() {
            self.announce_released();
        }
        let mut local = lock(&self.local);
        let idle = local.take_idle(now);
        // A connection that has ended has no reader of the slabs.
        let _ = self.close(&idle);
        self.ready.set(local.bytes());
        let remote = lock(&self.remote);
        let is_left = local.has_slabs() || remote.has_slabs();
        if !is_left {
            // Under both locks: the next slab of either end starts another thread.
            self.gives_back.end();
        }
        is_left
    }

    /// Gives slabs back from time to time until no end has one, or the connection ends.
    fn start_giving_back(self: &Arc<Self>) {
        if !self.is_caller || !self.other_end_closes.load(Ordering::Relaxed) {
            return;
        }
        let weak = Arc::downgrade(self);
        self.gives_back.start(self.idle_max / 4, move || {
            let Some(arena) = weak.upgrade() else { return false };
            // What the other end released and closed since the last call.
            let is_open = arena.sender().is_some_and(|sender| sender.read_arrived().is_ok());
            if !is_open {
                arena.end();
            }
            let now = Instant::now();
            let is_left = is_open && arena.give_back(now);
            arena.ready.bound(now);
            is_left
        });
    }

    /// Forgets all slabs of a connection that has ended. Readers keep their tensors.
    fn end(&self) {
        let local = std::mem::replace(&mut *lock(&self.local), LocalSlabs::new(self.idle_max));
        let remote = std::mem::take(&mut *lock(&self.remote));
        drop((local, remote));
        self.ready.set(0);
    }

    /// A reference to a tensor of this arena, for a message. The range stays reserved until the other end releases it.
    /// `None` for a tensor that is not in this arena.
    pub(crate) fn reference(&self, lease: &Lease) -> Option<p::ArenaTensorRef> {
        let range = lock(&self.local).send(lease)?;
        let (name, dtype) = (lease.name().to_owned(), lease.dtype().name().to_owned());
        Some(p::ArenaTensorRef { range, name, dtype, shape: lease.shape().to_vec() })
    }

    /// Handles a notification of the other end. Closes the connection when a slab cannot be opened: its tensors could
    /// not be read.
    pub(crate) fn on_notification(self: &Arc<Self>, method: &str, params: &str, fds: Vec<OwnedFd>) {
        if self.on_message(method, params, fds).is_err()
            && let Some(sender) = self.sender()
        {
            sender.close();
        }
    }

    /// Handles a message of the other end about the arena; ignores other methods.
    ///
    /// # Errors
    /// As [`open_slab`](Self::open_slab); `Invalid` for malformed parameters.
    fn on_message(self: &Arc<Self>, method: &str, params: &str, fds: Vec<OwnedFd>) -> Result<()> {
        let malformed = |error: serde_json::Error| Error::invalid(format!("{method}: {error}"));
        match method {
            p::OpenSlab::NAME => {
                let fd = fds.into_iter().next().ok_or_else(|| Error::invalid("a slab without its descriptor"))?;
                self.open_slab(&serde_json::from_str(params).map_err(malformed)?, fd)
            }
            p::CloseSlabs::NAME => {
                self.close_slabs(&serde_json::from_str(params).map_err(malformed)?);
                Ok(())
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
    pub(crate) fn open_slab(self: &Arc<Self>, params: &p::OpenSlabParams, fd: OwnedFd) -> Result<()> {
        lock(&self.remote).open(params, fd)?;
        self.start_giving_back();
        Ok(())
    }

    /// Unmaps slabs of the other end, each after its last tensor. Ignores slabs that are not open.
    pub(crate) fn close_slabs(self: &Arc<Self>, params: &p::CloseSlabsParams) {
        let closed = lock(&self.remote).close(&params.slabs);
        drop(closed);
        let is_first = !self.other_end_closes.swap(true, Ordering::Relaxed);
        self.announce();
        // Those that were opened before. A caller without any needs no thread.
        if is_first && (lock(&self.local).has_slabs() || lock(&self.remote).has_slabs()) {
            self.start_giving_back();
        }
    }

    /// Leases a tensor in a slab of the other end. Dropping the last lease releases the range.
    pub(crate) fn lease(
        self: &Arc<Self>,
        reference: &p::ArenaTensorRef,
        store: &ClientStore,
        holder: &Holder,
    ) -> Result<Lease> {
        let slab = lock(&self.remote).get(reference.range.slab)?;
        let spec = TensorSpec::new(reference.name.as_str(), reference.dtype.parse::<DType>()?, &reference.shape);
        spec.check_names()?;
        let layout = spec.layout()?;
        let start = usize::try_from(reference.range.offset).map_err(|_| Error::invalid("an offset beyond the slab"))?;
        let range = range_within(start, layout.size_bytes(), slab.len())?;
        let arena: Arc<dyn Release> = Arc::clone(self) as _;
        let segment = RemoteRange::new(slab.slice(range)?, reference.range, Arc::downgrade(&arena));
        store.keep_private(spec, layout, Arc::new(segment), holder)
    }

    /// Frees ranges that the other end released. Ignores ranges that were not sent.
    pub(crate) fn reclaim(&self, ranges: &[p::ArenaRange]) {
        let freed = lock(&self.local).reclaim(ranges);
        drop(freed);
    }

    /// Takes the released ranges to announce in the next message.
    pub(crate) fn take_released(&self) -> Vec<p::ArenaRange> {
        let mut released = lock(&self.released);
        let count = released.len().min(RELEASED_PER_MESSAGE_MAX);
        released.drain(..count).collect()
    }

    /// Announces released ranges in a message of their own.
    fn announce_released(&self) {
        let params = p::ReleaseRangesParams { ranges: self.take_released() };
        if !params.ranges.is_empty() && self.notify::<p::ReleaseRanges>(&params, Vec::new()).is_err() {
            self.release_later(&params.ranges);
        }
    }

    /// Puts released ranges back whose announcement was not sent.
    pub(crate) fn release_later(&self, ranges: &[p::ArenaRange]) {
        lock(&self.released).extend_from_slice(ranges);
    }
}

impl KeepsMemory for ConnectionArena {
    fn unused(&self, now: Instant) -> Unused {
        if self.other_end_closes.load(Ordering::Relaxed) { lock(&self.local).unused(now) } else { Unused::default() }
    }

    fn give_up_oldest(&self) {
        let mut local = lock(&self.local);
        let oldest: Vec<_> = local.take_oldest(Instant::now()).into_iter().collect();
        // A connection that has ended has no reader of the slab.
        let _ = self.close(&oldest);
        self.ready.set(local.bytes());
    }
}

impl Release for ConnectionArena {
    fn release(&self, range: p::ArenaRange) {
        let waiting = {
            let mut released = lock(&self.released);
            released.push(range);
            released.len()
        };
        // A caller seldom reads its socket: unread notifications would fill the socket.
        if self.is_caller && waiting >= RELEASED_MAX {
            self.announce_released();
        }
    }
}
