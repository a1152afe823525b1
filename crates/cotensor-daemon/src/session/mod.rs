//! One client: what it leases, what it has reserved, what it was sent. All of it goes when the client does.

mod open;
mod segments;

pub(crate) use open::{OPEN_MAX, Open};

use crate::daemon::Daemon;
use crate::functions::FunctionProvider;
use crate::segment::{Slab, SlabOwner};
use cotensor_client::protocol::{
    CallerInfo, Descriptor, FreedParams, Id, Published, SegmentInfo, SessionInfo, Spec, Transport, notification,
};
use cotensor_core::{Error, ErrorKind, MemoryKind, Result, Segment, size};
use cotensor_rpc::server::Outbox;
use cotensor_rpc::{self as rpc, FRAME_FDS_MAX, Frame};
use cotensor_store::backend::{Budget, Charge, TensorCharge};
use cotensor_store::{
    BlobPack, Holder, Key, Lease, SegmentCharge, TensorId, TensorSpec, TensorStore, Ticket, check_name,
};
use segments::Segments;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Names that one session may hold something under at a time.
const HOLDERS_MAX: usize = 1024;
/// A session's table with room for so many leases is not made smaller.
const LEASES_KEPT: usize = 1024;
/// Free ranges that one message names: so few that a socket takes it whole or not at all.
const FREED_AT_ONCE_MAX: usize = 128;
/// Free ranges that a client may leave unread.
const UNSAID_MAX: usize = 1 << 20;

/// A client's session.
pub(crate) struct Session {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) id: u64,
    /// The client's name and process, as holders show them; set by `session.hello`.
    client: OnceLock<String>,
    greeted: AtomicBool,
    pub(crate) pid: Option<i32>,
    begun: Instant,
    /// Where it is told things; none for HTTP.
    outbox: Option<Outbox>,
    /// For what it leases and has reserved.
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Ranges of its slabs that nobody reads any more, and it was not told of.
    unsaid: Mutex<BTreeSet<(u64, u64)>>,
}

#[derive(Default)]
pub(crate) struct State {
    holders: HashMap<String, Holder>,
    leases: HashMap<(TensorId, u32), Held>,
    segments: Segments,
    pub(crate) reservations: Open<Reserved>,
    pub(crate) packs: Open<(BlobPack, Arc<Charge>)>,
    pub(crate) tickets: Open<Ticket>,
    pub(crate) slabs: HashMap<u64, OwnSlab>,
}

impl State {
    /// Forgets the holders that hold nothing: a client that serves others names one for each of them.
    fn forget_holders(&mut self) {
        let Self { holders, leases, reservations, packs, .. } = self;
        let leased = leases.keys().map(|(_, holder)| *holder);
        let reserved = reservations.things.values().map(|reserved| reserved.holder.id());
        let packed = packs.things.values().map(|(pack, _)| pack.holder().id());
        let used: HashSet<u32> = leased.chain(reserved).chain(packed).collect();
        holders.retain(|_, holder| used.contains(&holder.id()));
    }
}

/// A slab that the session's client writes.
pub(crate) struct OwnSlab {
    pub(crate) slab: Arc<Slab>,
    /// As long as the client can write it, its memory does not come back.
    _share: SegmentCharge,
    /// What it takes from the session's budget.
    _charge: Arc<Charge>,
}

/// A tensor whose memory the client makes: the budget has room for it.
pub(crate) struct Reserved {
    pub(crate) spec: TensorSpec,
    pub(crate) charge: TensorCharge,
    /// What it takes from the session's budget; the lease takes its place.
    pub(crate) own: Arc<Charge>,
    pub(crate) holder: Holder,
}

/// A lease and how often the client took it.
struct Held {
    lease: Lease,
    count: u32,
    /// What it takes from the session's budget; nothing for what lies in a slab of the session's own.
    _charge: Option<Arc<Charge>>,
}

/// The daemon's descriptor of a segment.
fn fd_of(segment: &dyn Segment) -> Result<BorrowedFd<'_>> {
    segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))
}

/// Holds a segment's number while what was made in it is being granted.
pub(crate) struct Made<'a> {
    session: &'a Session,
    fd: RawFd,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.session.lock().segments.let_go(self.fd);
    }
}

impl Session {
    pub(crate) fn new(daemon: Arc<Daemon>, id: u64, pid: Option<i32>, outbox: Option<Outbox>) -> Self {
        let budget = Budget::new(daemon.config.max_client_bytes);
        let begun = Instant::now();
        let (client, state, unsaid) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Self { daemon, id, client, greeted: AtomicBool::new(false), pid, begun, outbox, budget, state, unsaid }
    }

    /// Names the client; later names are ignored.
    pub(crate) fn introduce(&self, client: &str) {
        let client: String = client.chars().filter(|c| !c.is_control()).take(100).collect();
        self.client.get_or_init(|| match (self.transport(), self.pid) {
            (Transport::Http, _) => format!("{client}[http]"),
            (Transport::Unix, Some(pid)) => format!("{client}[{pid}]"),
            (Transport::Unix, None) => client,
        });
    }

    /// Whether the client has said hello.
    pub(crate) fn is_introduced(&self) -> bool {
        self.client.get().is_some()
    }

    /// Whether the client has to say hello before anything else: on the Unix socket. An HTTP call may do without a session.
    pub(crate) fn is_ungreeted(&self) -> bool {
        self.transport() == Transport::Unix && !self.greeted.load(Ordering::Relaxed)
    }

    /// The client has said hello, and was not refused.
    pub(crate) fn greet(&self) {
        self.greeted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn transport(&self) -> Transport {
        if self.outbox.is_some() { Transport::Unix } else { Transport::Http }
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let state = self.lock();
        SessionInfo {
            session: self.id,
            client: self.client().to_owned(),
            transport: self.transport(),
            age_s: self.begun.elapsed().as_secs_f64(),
            leases: state.leases.len(),
            bytes: state.leases.values().map(|held| held.lease.layout().size_bytes() as u64).sum(),
        }
    }

    pub(crate) fn client(&self) -> &str {
        let unnamed = if self.transport() == Transport::Http { "http" } else { "unnamed" };
        self.client.get().map_or(unnamed, String::as_str)
    }

    /// The holder that leases of this session's `holder` count for.
    ///
    /// # Errors
    /// `Conflict` when the session has named too many, `Invalid` for a name that is too long.
    pub(crate) fn holder(&self, holder: &str) -> Result<Holder> {
        check_name(holder, "holder")?;
        let mut state = self.lock();
        if let Some(known) = state.holders.get(holder) {
            return Ok(known.clone());
        }
        if state.holders.len() >= HOLDERS_MAX {
            state.forget_holders();
        }
        if state.holders.len() >= HOLDERS_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{HOLDERS_MAX} holders are named in this session")));
        }
        let short: String = holder.chars().filter(|c| !c.is_control()).take(200).collect();
        let name = if holder.is_empty() { self.client().to_owned() } else { format!("{}/{short}", self.client()) };
        let known = self.daemon.store.holder(&name);
        state.holders.insert(holder.to_owned(), known.clone());
        Ok(known)
    }

    /// Takes `bytes` from what one client may have.
    ///
    /// # Errors
    /// `OverBudget` when it has too much already.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Arc<Charge>> {
        self.budget.take(bytes).ok_or_else(|| {
            let (used, max) = (self.budget.used(), self.budget.max());
            let message = format!(
                "{} leases and reserves {}, {} more are beyond the {} of one client",
                self.client(),
                size(used),
                size(bytes),
                size(max)
            );
            Error::new(ErrorKind::OverBudget, message)
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn outbox(&self) -> Option<&Outbox> {
        self.outbox.as_ref()
    }

    /// Tells the client of ranges that are free, as far as it takes that now.
    pub(crate) fn tell_freed(&self) {
        let Some(outbox) = &self.outbox else { return };
        let mut unsaid = self.unsaid();
        while let Some(&(slab, _)) = unsaid.first() {
            let same = unsaid.range((slab, 0)..=(slab, u64::MAX)).map(|(_, offset)| *offset);
            let params = FreedParams { slab, offsets: same.take(FREED_AT_ONCE_MAX).collect() };
            let body = rpc::encode_call(None, notification::SLAB_FREED, &params);
            // A connection that has ended needs to know nothing more.
            if !body.and_then(|body| outbox.offer(Frame::new(body))).unwrap_or(false) {
                return;
            }
            for offset in params.offsets {
                unsaid.remove(&(slab, offset));
            }
        }
    }

    fn unsaid(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        self.unsaid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a notification with descriptors. False when the session has ended or ends now.
    fn notify(&self, method: &str, params: &impl serde::Serialize, fds: Vec<OwnedFd>) -> bool {
        let (Some(outbox), Ok(body)) = (&self.outbox, rpc::encode_call(None, method, params)) else { return false };
        outbox.send(Frame { body, fds }).is_ok()
    }

    /// Keeps a lease for the client and describes the tensor to it. The segment's descriptor is added to `fds` when
    /// the client has not got it.
    pub(crate) fn grant(&self, lease: Lease, holder: &Holder, fds: &mut Vec<OwnedFd>) -> Result<Descriptor> {
        let (segment, layout) = (lease.segment(), lease.layout());
        let (slab, device) = (segment.kind() == MemoryKind::Slab, segment.device());
        let offset_bytes = layout.offset_bytes() + segment.fd_offset();
        let (spec, strides) = (Spec::from(&lease.spec()).looked_at(layout), layout.strides().to_vec());
        let sent = fds.len();
        let (Published { id, segment, index }, bytes) = self.keep(lease, holder, fds)?;
        let segment = SegmentInfo { id: segment, bytes, slab, device };
        Ok(Descriptor { id, spec, strides, offset_bytes, segment, fd: fds.len() > sent, index })
    }

    /// Keeps a lease for the client of what it made in memory of its own.
    pub(crate) fn grant_made(&self, lease: Lease, holder: &Holder) -> Result<Published> {
        let _made = self.made(lease.segment())?;
        Ok(self.keep(lease, holder, &mut Vec::new())?.0)
    }

    /// Keeps a lease; also returns the size of its segment in bytes.
    fn keep(&self, lease: Lease, holder: &Holder, fds: &mut Vec<OwnedFd>) -> Result<(Published, u64)> {
        let fd = fd_of(lease.segment())?;
        let index = self.outbox.as_ref().and_then(|_| self.daemon.events.slots.slot_of(&self.daemon.store, &lease));
        let mut state = self.lock();
        let key = (lease.id(), holder.id());
        let held_already = state.leases.contains_key(&key);
        let in_own_slab =
            || state.segments.by_fd.get(&fd.as_raw_fd()).is_some_and(|known| state.slabs.contains_key(&known.id));
        let charge = match held_already || in_own_slab() {
            true => None,
            false => Some(self.charge(lease.layout().size_bytes() as u64)?),
        };
        let known = state.segments.hold(fd)?;
        let (segment, bytes) = (known.id, known.bytes);
        if self.outbox.is_some() && !known.sent && fds.len() < FRAME_FDS_MAX {
            match fd.try_clone_to_owned() {
                Ok(copy) => fds.push(copy),
                Err(error) => {
                    state.segments.let_go(fd.as_raw_fd());
                    return Err(Error::io("duplicating a descriptor", &error));
                }
            }
            known.sent = true;
        }
        if held_already {
            // One lease of the store stands for all that the client took under this holder.
            state.segments.let_go(fd.as_raw_fd());
        }
        let published = Published { id: lease.id().into(), segment, index };
        let surplus = match state.leases.entry(key) {
            Entry::Occupied(mut held) => {
                held.get_mut().count += 1;
                Some(lease)
            }
            Entry::Vacant(place) => {
                place.insert(Held { lease, count: 1, _charge: charge });
                None
            }
        };
        drop(state);
        drop(surplus);
        Ok((published, bytes))
    }

    /// Keeps a lease that the client had before the daemon was replaced; returns which it is.
    ///
    /// # Errors
    /// `Unsupported` for a segment without a descriptor.
    pub(crate) fn take_up(&self, lease: Lease, holder: &Holder) -> Result<Id> {
        let (id, fd) = (lease.id(), fd_of(lease.segment())?);
        let mut state = self.lock();
        let State { leases, segments, .. } = &mut *state;
        match leases.entry((id, holder.id())) {
            // Said twice: one is enough, as for the client it is one.
            Entry::Occupied(_) => {
                drop(state);
                drop(lease);
            }
            Entry::Vacant(place) => {
                // What the client had under the former daemon it keeps, whatever its budget is now.
                let charge = self.budget.take(lease.layout().size_bytes() as u64);
                segments.hold(fd)?;
                place.insert(Held { lease, count: 1, _charge: charge });
            }
        }
        Ok(id.into())
    }

    /// Notes that the client made this segment itself: it has the descriptor.
    ///
    /// # Errors
    /// `Unsupported` for a segment without a descriptor.
    pub(crate) fn made(&self, segment: &dyn Segment) -> Result<Made<'_>> {
        let fd = fd_of(segment)?;
        self.lock().segments.hold(fd)?.sent = true;
        Ok(Made { session: self, fd: fd.as_raw_fd() })
    }

    /// The computation that a ticket of the session's is for.
    ///
    /// # Errors
    /// `NotFound` for a number that it does not have.
    pub(crate) fn key_of(&self, ticket: u64) -> Result<Key> {
        let missing = || Error::not_found(format!("this session has no ticket {ticket}")).in_field("ticket");
        self.lock().tickets.things.get(&ticket).map(Ticket::key).ok_or_else(missing)
    }

    /// A lease of a tensor that the session leases.
    ///
    /// # Errors
    /// `NotFound` for any other.
    pub(crate) fn leased(&self, id: TensorId) -> Result<Lease> {
        let state = self.lock();
        let held = state.leases.iter().find(|((held, _), _)| *held == id);
        let missing = || Error::not_found(format!("this session does not hold version {} of {}", id.version, id.slot));
        held.ok_or_else(missing)?.1.lease.try_clone()
    }

    /// Takes one of the client's leases back.
    ///
    /// # Errors
    /// `NotFound` for one that it does not have.
    pub(crate) fn release(&self, id: TensorId, holder: &Holder) -> Result<()> {
        let mut state = self.lock();
        let key = (id, holder.id());
        let Some(held) = state.leases.get_mut(&key) else {
            return Err(Error::not_found(format!(
                "this session does not hold version {} of tensor {}",
                id.version, id.slot
            )));
        };
        held.count -= 1;
        if held.count > 0 {
            return Ok(());
        }
        let gone = state.leases.remove(&key);
        let left = state.leases.len();
        if state.leases.capacity() > LEASES_KEPT.max(4 * left) {
            state.leases.shrink_to(2 * left);
        }
        if let Some(Ok(fd)) = gone.as_ref().map(|held| fd_of(held.lease.segment())) {
            state.segments.let_go(fd.as_raw_fd());
        }
        // Freeing a tensor can be long; others of this session need not wait for it.
        drop(state);
        drop(gone);
        Ok(())
    }

    /// The descriptor of a segment in which the session holds something.
    ///
    /// # Errors
    /// `NotFound` for any other, `Unsupported` for a session that cannot be sent one.
    pub(crate) fn segment_fd(&self, segment: u64) -> Result<OwnedFd> {
        if self.transport() == Transport::Http {
            return Err(Error::unsupported("descriptors travel on the Unix socket only"));
        }
        let mut state = self.lock();
        let State { leases, segments, .. } = &mut *state;
        let missing =
            || Error::not_found(format!("this session holds nothing in segment {segment}")).in_field("segment");
        let known = segments.by_fd.iter_mut().find(|(_, known)| known.id == segment);
        let (&at, known) = known.ok_or_else(missing)?;
        let held = leases
            .values()
            .find(|held| fd_of(held.lease.segment()).is_ok_and(|fd| fd.as_raw_fd() == at))
            .ok_or_else(missing)?;
        let fd = held.lease.segment().fd().ok_or_else(missing)?;
        known.sent = true;
        fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))
    }

    /// Keeps a slab of the session's own, under the number of its segment.
    ///
    /// # Errors
    /// `Io` when the system does not say what it is.
    pub(crate) fn keep_slab(&self, slab: Arc<Slab>, share: SegmentCharge, charge: Arc<Charge>) -> Result<u64> {
        let mut state = self.lock();
        let known = state.segments.hold(slab.fd())?;
        known.sent = true;
        let id = known.id;
        state.slabs.insert(id, OwnSlab { slab, _share: share, _charge: charge });
        Ok(id)
    }

    /// Gives everything back.
    pub(crate) fn end(&self) {
        self.daemon.functions.forget(self.id);
        let state = std::mem::take(&mut *self.lock());
        drop(state);
    }
}

impl SlabOwner for Session {
    /// Notifies the client at once if its socket has room, otherwise with its next call. An idle client reads nothing, and
    /// there may be thousands of ranges.
    fn on_range_free(&self, slab: u64, offset: u64) {
        let mut unsaid = self.unsaid();
        // A client publishes in a range again only after the notification. One that does not wait counts once.
        unsaid.insert((slab, offset));
        if unsaid.len() > UNSAID_MAX {
            self.outbox.iter().for_each(Outbox::end);
            return;
        }
        drop(unsaid);
        self.tell_freed();
    }
}

impl FunctionProvider for Session {
    fn session(&self) -> u64 {
        self.id
    }

    fn client(&self) -> &str {
        Self::client(self)
    }

    fn connect(&self, caller: &CallerInfo, socket: OwnedFd) -> bool {
        self.notify(notification::FUNCTION_CONNECT, caller, vec![socket])
    }
}
