//! A session: the client, and its part of the budget.

use super::disconnected::LeftSession;
use super::free_ranges::FreeRanges;
use super::queues::Queues;
use super::resources::Resources;
use crate::state::broker::DeviceProgram;
use crate::state::functions::{FunctionProvider, Slots};
use crate::state::segment::SlabOwner;
use crate::state::{EndMark, StoreEvents};
use cotensor_client::protocol::{CallerInfo, DeviceShareParams, SessionInfo, Transport, notification};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result, size};
use cotensor_rpc::server::Outbox;
use cotensor_rpc::{Frame, encode_call};
use cotensor_store::backend::{Budget, Charge};
use cotensor_store::{
    ChangePosition, ChangesFuture, EveryVersion, Holder, Key, Lease, LocalStore, TensorStore, Ticket, check_name,
};
use cotensor_supervisor::SessionClient;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// The most holders of a session at a time.
const HOLDERS_MAX: usize = 1024;
/// The client's holder of the versions that its queues lease.
const QUEUES_HOLDER: &str = "watch";

/// The outcome of ending a session. The thread of its connection and a session that resumes it may both end it.
#[must_use]
pub(crate) enum Ended {
    /// It ends now, with what its client may resume.
    Now(Option<LeftSession>),
    /// It had ended before.
    Before,
}

/// A client's session.
pub(crate) struct Session {
    pub(super) store: Arc<LocalStore>,
    pub(super) events: Arc<StoreEvents>,
    pub(crate) id: u64,
    /// The client's name and process, as in the names of holders. Set by `session.hello`.
    client: OnceLock<String>,
    /// Whether `session.hello` has succeeded.
    has_said_hello: AtomicBool,
    pub(crate) pid: Option<i32>,
    /// Set by a `session.hello` after which the client may resume the session.
    resumable: OnceLock<SessionClient>,
    /// The time of its start, by the daemon's clock.
    started: Duration,
    /// The sender of messages to the client; `None` for HTTP.
    outbox: Option<Outbox>,
    /// For leases and reservations.
    pub(super) budget: Arc<Budget>,
    resources: Mutex<Resources>,
    queues: Queues,
    free_ranges: FreeRanges,
    end_mark: EndMark,
    /// The slots of calls over HTTP of its functions.
    slots: Slots,
}

impl Session {
    pub(crate) fn new(
        store: Arc<LocalStore>,
        events: Arc<StoreEvents>,
        max_bytes: u64,
        id: u64,
        pid: Option<i32>,
        outbox: Option<Outbox>,
        started: Duration,
    ) -> Self {
        Self {
            store,
            events,
            id,
            client: OnceLock::new(),
            has_said_hello: AtomicBool::new(false),
            pid,
            resumable: OnceLock::new(),
            started,
            outbox,
            budget: Budget::new(max_bytes),
            resources: Mutex::default(),
            queues: Queues::default(),
            free_ranges: FreeRanges::default(),
            end_mark: EndMark::default(),
            slots: Slots::of_provider(),
        }
    }

    /// Names the client; later names are ignored.
    pub(crate) fn set_client(&self, client: &str) {
        let client: String = client.chars().filter(|c| !c.is_control()).take(100).collect();
        self.client.get_or_init(|| match (self.transport(), self.pid) {
            (Transport::Http, _) => format!("{client}[http]"),
            (Transport::Unix, Some(pid)) => format!("{client}[{pid}]"),
            (Transport::Unix, None) => client,
        });
    }

    /// Whether the client has a name from `session.hello`.
    pub(crate) fn is_named(&self) -> bool {
        self.client.get().is_some()
    }

    /// Whether `session.hello` must be the next call. A call over HTTP needs no session.
    pub(crate) fn needs_hello(&self) -> bool {
        self.transport() == Transport::Unix && !self.has_said_hello.load(Ordering::Relaxed)
    }

    /// Notes that `session.hello` has succeeded.
    pub(crate) fn complete_hello(&self) {
        self.has_said_hello.store(true, Ordering::Relaxed);
    }

    /// Notes that `client` may resume the session.
    pub(crate) fn set_resumable(&self, client: SessionClient) {
        self.resumable.get_or_init(|| client);
    }

    /// The client that may resume the session.
    pub(crate) fn resumable(&self) -> Option<&SessionClient> {
        self.resumable.get()
    }

    pub(crate) fn transport(&self) -> Transport {
        if self.outbox.is_some() { Transport::Unix } else { Transport::Http }
    }

    pub(crate) fn info(&self, now: Duration) -> SessionInfo {
        let resources = self.lock();
        SessionInfo {
            session: self.id,
            client: self.client().to_owned(),
            transport: self.transport(),
            age_s: now.saturating_sub(self.started).as_secs_f64(),
            leases: resources.leases.len(),
            bytes: resources.leases.values().map(|entry| entry.lease.layout().size_bytes() as u64).sum(),
        }
    }

    pub(crate) fn client(&self) -> &str {
        let unnamed = if self.transport() == Transport::Http { "http" } else { "unnamed" };
        self.client.get().map_or(unnamed, String::as_str)
    }

    /// The store's holder for the client's holder of this name.
    ///
    /// # Errors
    /// `Conflict` when the session has too many holders; `Invalid` for a name that is too long.
    pub(crate) fn holder(&self, holder: &str) -> Result<Holder> {
        check_name(holder, "holder")?;
        let mut resources = self.lock();
        if let Some(known) = resources.holders.get(holder) {
            return Ok(known.clone());
        }
        if resources.holders.len() >= HOLDERS_MAX {
            resources.remove_unused_holders();
        }
        if resources.holders.len() >= HOLDERS_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{HOLDERS_MAX} holders are named in this session")));
        }
        let short: String = holder.chars().filter(|c| !c.is_control()).take(200).collect();
        let name = if holder.is_empty() { self.client().to_owned() } else { format!("{}/{short}", self.client()) };
        let known = self.store.holder(&name);
        resources.holders.insert(holder.to_owned(), known.clone());
        Ok(known)
    }

    /// Opens a queue of every version. The session's budget is charged for the versions that it leases.
    ///
    /// # Errors
    /// As [`Queues::open`]; `Unsupported` over HTTP.
    pub(crate) fn open_versions(&self, every: EveryVersion) -> Result<ChangePosition> {
        if self.transport() == Transport::Http {
            return Err(Error::unsupported("a queue of every version needs a session: connect to the Unix socket"));
        }
        self.queues.open(&self.store, every, &self.holder(QUEUES_HOLDER)?, &self.budget)
    }

    /// The changes of one of the session's queues after `since`.
    pub(crate) fn await_versions(&self, since: ChangePosition) -> ChangesFuture {
        self.queues.changes(since)
    }

    /// Ends one of the session's queues.
    pub(crate) fn end_versions(&self, log: u64) {
        self.queues.end_one(log);
    }

    /// Charges `bytes` to the session's budget. The session's queues give versions up for them.
    ///
    /// # Errors
    /// `OverBudget` when they exceed it.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Arc<Charge>> {
        let mut given = Vec::new();
        let charge = self.charge_giving_up(bytes, &mut given);
        drop(given);
        charge
    }

    /// As [`charge`](Self::charge). `given` are the leases that the queues give up, to be dropped without a lock.
    pub(super) fn charge_giving_up(&self, bytes: u64, given: &mut Vec<Lease>) -> Result<Arc<Charge>> {
        loop {
            if let Some(charge) = self.budget.take(bytes) {
                return Ok(charge);
            }
            // The version that the client leases is the oldest of its queue: the queue's lease is not needed any more.
            let more = self.queues.give_up();
            if more.is_empty() {
                break;
            }
            given.extend(more);
        }
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Resources> {
        lock(&self.resources)
    }

    pub(crate) fn outbox(&self) -> Option<&Outbox> {
        self.outbox.as_ref()
    }

    /// Sends the pending notifications of free ranges, as far as the client's socket has room.
    pub(crate) fn send_free_ranges(&self) {
        if let Some(outbox) = &self.outbox {
            self.free_ranges.send(outbox);
        }
    }

    /// Sends a notification with descriptors. False when the session has ended or ends now.
    fn notify(&self, method: &str, params: &impl serde::Serialize, fds: Vec<OwnedFd>) -> bool {
        let (Some(outbox), Ok(body)) = (&self.outbox, encode_call(None, method, params)) else { return false };
        outbox.send(Frame { body, fds }).is_ok()
    }

    /// The key of the computation for which the session has this ticket.
    ///
    /// # Errors
    /// `NotFound` for a ticket that the session does not have.
    pub(crate) fn ticket_key(&self, ticket: u64) -> Result<Key> {
        let missing = || Error::not_found(format!("this session has no ticket {ticket}")).in_field("ticket");
        self.lock().tickets.get(ticket).map(Ticket::key).ok_or_else(missing)
    }

    /// Set before the entries of the session are removed from the tables of the daemon.
    pub(crate) fn end_mark(&self) -> &EndMark {
        &self.end_mark
    }

    /// Releases everything but leases and shares of devices that a client with a lock may resume. After the first end, everything.
    pub(crate) fn end(&self) -> Ended {
        self.queues.end();
        let mut resources = std::mem::replace(&mut *self.lock(), Resources { ended: true, ..Resources::default() });
        // Other threads may have this session for some time. The client opens its slabs in the next one meanwhile.
        resources.slabs.values().for_each(|entry| entry.slab().disown(self));
        if resources.ended {
            return Ended::Before;
        }
        let Some(client) = self.resumable.get().filter(|client| client.locked) else { return Ended::Now(None) };
        let (leases, shares) = (std::mem::take(&mut resources.leases), std::mem::take(&mut resources.shares));
        let is_left = !leases.is_empty() || !shares.is_empty();
        Ended::Now(is_left.then(|| LeftSession { session: self.id, client: *client, leases, shares }))
    }
}

impl SlabOwner for Session {
    fn end_mark(&self) -> &EndMark {
        &self.end_mark
    }

    /// Notifies the client at once if its socket has room, otherwise with its next call. An idle client reads nothing,
    /// and there may be thousands of ranges.
    fn on_range_free(&self, slab: u64, offset: u64) {
        if self.free_ranges.add(slab, offset) {
            self.send_free_ranges()
        } else {
            self.outbox.iter().for_each(Outbox::end)
        }
    }

    fn on_range_used(&self, slab: u64, offset: u64) -> bool {
        self.free_ranges.remove(slab, offset)
    }
}

impl FunctionProvider for Session {
    fn session(&self) -> u64 {
        self.id
    }

    fn end_mark(&self) -> &EndMark {
        &self.end_mark
    }

    fn client(&self) -> &str {
        Self::client(self)
    }

    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn connect(&self, caller: &CallerInfo, socket: OwnedFd) -> bool {
        self.notify(notification::FUNCTION_CONNECT, caller, vec![socket])
    }
}

impl DeviceProgram for Session {
    fn session(&self) -> u64 {
        self.id
    }

    fn client(&self) -> &str {
        Self::client(self)
    }

    fn send_share(&self, share: &DeviceShareParams) {
        // A failure ends the connection, and the share with it.
        self.notify(notification::BROKER_SHARE, share, Vec::new());
    }
}
