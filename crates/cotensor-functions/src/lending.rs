//! Small tensors that one end of a socket lends to the other: in memory that both have mapped, for as long as the other
//! reads them.
//!
//! A published tensor costs its producer and its reader a question to the daemon each, which is more than copying a
//! small one. What is lent costs none: the sender writes it into a [`Slab`] of the connection, whose descriptor the
//! receiver got once, and a message says where it lies. The receiver says when it reads a range no more, with the next
//! message that goes back anyway; before that the sender does not use it again. When the connection ends, nothing in
//! its slabs is ever written again, so that who still reads there, reads what was sent.
//!
//! What is lent is no tensor of the store: the daemon neither counts nor lists it. There is little of it, by the bounds
//! below; whatever does not fit is published.

use cotensor_client::ClientStore;
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider as p;
use cotensor_core::{DType, Device, Error, Layout, MemoryKind, Result, Segment, range_within};
use cotensor_memory::{Guarantee, SealedMemfd, Slab, check_no_holes, check_sealed};
use cotensor_rpc as rpc;
use cotensor_store::{Holder, Lease, Reservation, TensorSpec, TensorStore};
use rustix::param::page_size;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The longest tensor that is lent.
const LENT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the first slab, unless two such tensors need more; each further one has as many as there are.
const SLAB_BYTES_MIN: usize = 64 << 10;
/// Bytes of all slabs of one end.
const BYTES_MAX: usize = 16 << 20;
/// Slabs that the other end may open.
const SLABS_MAX: usize = 64;
/// So many ranges that are read no more are said at once, and do not wait for a message.
const RETURNED_MAX: usize = 32;
/// The most that one message says.
const RETURNED_AT_ONCE_MAX: usize = 4096;

/// The socket to the other end.
pub(crate) trait Speak: Send + Sync {
    /// Sends a message, after those before it.
    fn speak(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()>;
    /// Ends the connection.
    fn end(&self);
}

/// One end of a connection.
#[derive(Default)]
pub(crate) struct Lending {
    /// Whether the other end reads at all times, and can be told of ranges that are read no more when there is no message.
    other_reads: bool,
    speaker: OnceLock<Weak<dyn Speak>>,
    lent: Mutex<Lent>,
    /// Slabs of the other end.
    theirs: Mutex<HashMap<u64, Arc<SealedMemfd>>>,
    /// Ranges of theirs that are read no more, to be said.
    returned: Mutex<Vec<p::LentRange>>,
}

/// What this end lends.
#[derive(Default)]
struct Lent {
    /// The other end knows each, by its place here.
    slabs: Vec<Slab>,
    /// What the other end reads, and how often it was sent.
    ranges: HashMap<p::LentRange, (Lease, usize)>,
}

impl Lending {
    /// At an end whose other end reads at all times.
    pub(crate) fn with_a_reader() -> Self {
        Self { other_reads: true, ..Self::default() }
    }

    /// Through what it is said what is opened and returned.
    pub(crate) fn speak_through(&self, speaker: Weak<dyn Speak>) {
        drop(self.speaker.set(speaker));
    }

    fn say<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>) -> Result<()> {
        let speaker = self.speaker.get().and_then(Weak::upgrade);
        let speaker = speaker.ok_or_else(|| Error::new(cotensor_core::ErrorKind::Io, "the connection has ended"))?;
        speaker.speak(rpc::encode_call(None, M::NAME, params)?, fds)
    }

    /// Memory for a tensor of `len` bytes, which has to be written in full; none where it is too long, or too much is lent.
    fn reserve(&self, len: usize) -> Result<Option<Box<dyn cotensor_core::SegmentMut>>> {
        if len > LENT_BYTES_MAX {
            return Ok(None);
        }
        let mut lent = lock(&self.lent);
        let found = lent.slabs.iter().find_map(|slab| slab.reserve_unzeroed(len).ok());
        if found.is_some() {
            return Ok(found);
        }
        let all: usize = lent.slabs.iter().map(Slab::len).sum();
        let bytes = all.max(SLAB_BYTES_MIN).max((2 * len).next_multiple_of(page_size()));
        if all + bytes > BYTES_MAX {
            return Ok(None);
        }
        let slab = Slab::create(bytes)?;
        let fd = slab.fd().try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        // Under the lock: no message names a slab before the one that opens it.
        self.say::<p::OpenLent>(&p::OpenLentParams { slab: lent.slabs.len() as u64, bytes: bytes as u64 }, vec![fd])?;
        let segment = slab.reserve_unzeroed(len)?;
        lent.slabs.push(slab);
        Ok(Some(segment))
    }

    /// Lends what lies in memory of [`reserve`](Self::reserve)'s; none for any other.
    pub(super) fn lend(&self, lease: &Lease) -> Option<p::LentRef> {
        let fd = lease.segment().fd()?.as_raw_fd();
        let mut lent = lock(&self.lent);
        let slab = lent.slabs.iter().position(|slab| slab.fd().as_raw_fd() == fd)? as u64;
        let range = p::LentRange { slab, offset: lease.segment().fd_offset() as u64 };
        match lent.ranges.entry(range) {
            Entry::Occupied(mut known) => known.get_mut().1 += 1,
            Entry::Vacant(place) => drop(place.insert((lease.try_clone().ok()?, 1))),
        }
        let (name, dtype) = (lease.name().to_owned(), lease.dtype().name().to_owned());
        Some(p::LentRef { range, name, dtype, shape: lease.shape().to_vec() })
    }

    /// Hears what the other end says and wants no answer to. A slab that cannot be opened ends the connection: what will lie in
    /// it could not be read.
    pub(crate) fn hear_notice(&self, method: &str, params: &str, fds: Vec<OwnedFd>) {
        if self.hear(method, params, fds).is_err()
            && let Some(speaker) = self.speaker.get().and_then(Weak::upgrade)
        {
            speaker.end();
        }
    }

    /// Hears what the other end says of lending.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Invalid` for what it cannot be.
    pub(crate) fn hear(&self, method: &str, params: &str, fds: Vec<OwnedFd>) -> Result<()> {
        let wrong = |error: serde_json::Error| Error::invalid(format!("{method}: {error}"));
        match method {
            p::OpenLent::NAME => {
                let fd = fds.into_iter().next().ok_or_else(|| Error::invalid("a slab without its descriptor"))?;
                self.open(&serde_json::from_str(params).map_err(wrong)?, fd)
            }
            p::ReturnLent::NAME => {
                let params: p::ReturnLentParams = serde_json::from_str(params).map_err(wrong)?;
                self.take_back(&params.ranges);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The other end opened a slab.
    ///
    /// # Errors
    /// `Refused` for memory that is not sealed, `Conflict` for too many or one that is open.
    pub(crate) fn open(&self, params: &p::OpenLentParams, fd: OwnedFd) -> Result<()> {
        let len = usize::try_from(params.bytes).map_err(|_| Error::invalid("a slab beyond this process"))?;
        check_sealed(&fd, len, Guarantee::ProducerOnly)?;
        check_no_holes(&fd, len)?;
        let slab = Arc::new(SealedMemfd::open(fd, len, Guarantee::ProducerOnly)?);
        let mut theirs = lock(&self.theirs);
        if theirs.len() >= SLABS_MAX || theirs.contains_key(&params.slab) {
            let message = format!("slab {} is open, or one of more than {SLABS_MAX}", params.slab);
            return Err(Error::new(cotensor_core::ErrorKind::Conflict, message));
        }
        theirs.insert(params.slab, slab);
        Ok(())
    }

    /// A tensor that the other end lends, until its last lease is dropped.
    pub(super) fn borrow(self: &Arc<Self>, lent: &p::LentRef, store: &ClientStore, holder: &Holder) -> Result<Lease> {
        let slab = lock(&self.theirs).get(&lent.range.slab).cloned();
        let slab = slab.ok_or_else(|| Error::not_found(format!("slab {} was not opened", lent.range.slab)))?;
        let spec = TensorSpec::new(lent.name.as_str(), lent.dtype.parse::<DType>()?, &lent.shape);
        spec.check_names()?;
        let layout = Layout::contiguous(spec.dtype, &spec.shape)?;
        let start = usize::try_from(lent.range.offset).map_err(|_| Error::invalid("an offset beyond the slab"))?;
        let range = range_within(start, layout.size_bytes(), slab.len())?;
        let segment = Borrowed { part: slab.slice(range)?, range: lent.range, lending: Arc::downgrade(self) };
        store.keep_private(spec, layout, Arc::new(segment), holder)
    }

    /// The other end reads some ranges no more.
    pub(crate) fn take_back(&self, ranges: &[p::LentRange]) {
        let mut lent = lock(&self.lent);
        let mut free = Vec::new();
        for range in ranges {
            // It may say what it likes: what was not lent is not taken back.
            let Some((_, count)) = lent.ranges.get_mut(range) else { continue };
            *count -= 1;
            if *count == 0 {
                free.extend(lent.ranges.remove(range));
            }
        }
        drop(lent);
        drop(free);
    }

    /// What is read no more and was not said yet: for a message that goes to the other end.
    pub(crate) fn returned(&self) -> Vec<p::LentRange> {
        let mut returned = lock(&self.returned);
        let count = returned.len().min(RETURNED_AT_ONCE_MAX);
        returned.drain(..count).collect()
    }

    fn give_back(&self, range: p::LentRange) {
        let all = {
            let mut returned = lock(&self.returned);
            returned.push(range);
            // Who reads only while he waits for an answer gets it with that: unread messages would end the connection.
            if !self.other_reads || returned.len() < RETURNED_MAX {
                return;
            }
            std::mem::take(&mut *returned)
        };
        let ranges = p::ReturnLentParams { ranges: all };
        if self.say::<p::ReturnLent>(&ranges, Vec::new()).is_err() {
            // Said with the next message; after the end of the connection nobody waits for it.
            self.return_later(&ranges.ranges);
        }
    }

    /// Ranges that are read no more, and that the other end does not know of: for the next message.
    pub(crate) fn return_later(&self, ranges: &[p::LentRange]) {
        lock(&self.returned).extend_from_slice(ranges);
    }
}

/// A part of a slab of the other end's, which is told when it is read no more.
struct Borrowed {
    part: Arc<dyn Segment>,
    range: p::LentRange,
    lending: Weak<Lending>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(lending) = self.lending.upgrade() {
            lending.give_back(self.range);
        }
    }
}

impl Segment for Borrowed {
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

/// Where tensors are written that are arguments or results: they are lent to the other end where that is faster, and
/// published in the store where they are large, many, or for more readers than one.
#[derive(Clone)]
pub struct Outlet {
    store: Arc<ClientStore>,
    lending: Option<Arc<Lending>>,
}

/// Everything is published.
impl From<Arc<ClientStore>> for Outlet {
    fn from(store: Arc<ClientStore>) -> Self {
        Self::new(store, None)
    }
}

impl Outlet {
    pub(crate) fn new(store: Arc<ClientStore>, lending: Option<Arc<Lending>>) -> Self {
        Self { store, lending }
    }

    /// The store that published tensors are in.
    pub fn store(&self) -> &Arc<ClientStore> {
        &self.store
    }

    /// Memory for a tensor, to be written in full (it may hold what an earlier one did), published and passed. What was lent, and is passed to another process than this
    /// is for, is copied once more.
    ///
    /// # Errors
    /// As [`TensorStore::reserve`].
    pub fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        let Some(lending) = &self.lending else { return self.store.reserve(spec, holder) };
        let layout = Layout::contiguous(spec.dtype, &spec.shape).map_err(|error| error.in_field(spec.name.as_str()))?;
        // What cannot be lent, for whatever reason, can be published.
        match lending.reserve(layout.size_bytes()).ok().flatten() {
            Some(segment) => self.store.reserve_in_private(spec, layout, segment, holder),
            None => self.store.reserve(spec, holder),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
