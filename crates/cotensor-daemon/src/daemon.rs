//! The state that all connections and sessions of a daemon share.

use crate::config::Config;
use crate::descriptors;
use crate::log_throttle::LogThrottle;
use crate::models::Models;
use crate::provider_tasks::TaskConnections;
use crate::spill_files::Files;
use crate::state::broker::Broker;
use crate::state::channels::Channels;
use crate::state::functions;
use crate::state::segment::Slabs;
use crate::state::session::{Disconnected, Ended, LeftSession, Session, SessionLocks};
use crate::state::{HttpService, Orphans, StoreEvents};
use cotensor_client::protocol::SessionInfo;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Hasher, Result};
use cotensor_rpc::FrameBudget;
use cotensor_rpc::server::{CallCounts, Outbox};
use cotensor_store::backend::Record;
use cotensor_store::{Clock, LocalStore, Stats, StoreReports};
use cotensor_supervisor::{Event, SessionClient};
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use tokio::sync::{Notify, watch};

/// Sessions without a connection that have more leases are for the next server as sessions with one.
const RECORDED_LEASES_MAX: usize = 1000;

/// Serves HTTP on loopback until the daemon stops, unless it does so already. Without a port it is the default one, or a free one if
/// another program has that. The next server of the daemon continues.
///
/// The errors are `Refused` for a daemon that is a part of another program; `Conflict` when another program has the port; `Io`; those of the
/// token files.
pub(crate) type StartHttp =
    for<'a> fn(&'a Arc<Daemon>, Option<u16>) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A daemon: the store, its sessions, and the state that they share.
pub struct Daemon {
    pub(crate) config: Config,
    /// The clock of all state.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Arc<LocalStore>,
    pub(crate) events: Arc<StoreEvents>,
    /// The files of spilled tensors, with a folder for them.
    pub(crate) files: Option<Arc<Files>>,
    /// Counts of calls and of their errors.
    pub(crate) counts: CallCounts,
    pub(crate) functions: functions::Registry,
    /// Connections to the providers, which have the tasks.
    pub(crate) tasks: TaskConnections,
    pub(crate) broker: Arc<Broker>,
    pub(crate) slabs: Slabs,
    pub(crate) channels: Channels,
    /// The memory budget for incoming messages of all sessions.
    pub(crate) frames: Arc<FrameBudget>,
    /// Differs between daemons.
    pub(crate) epoch: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) next_session: AtomicU64,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) locks: SessionLocks,
    pub(crate) disconnected: Mutex<Disconnected>,
    /// The thread that runs what is due, while the daemon serves its socket.
    pub(crate) timers: OnceLock<Thread>,
    /// Notified at the end of each session.
    pub(crate) ended: Notify,
    /// The HTTP server while HTTP is served.
    pub(crate) http: Mutex<Option<Arc<dyn HttpService>>>,
    /// Turns HTTP on for a client.
    pub(crate) start_http: StartHttp,
    /// Locked while HTTP is turned on, so that this happens once.
    pub(crate) http_start: tokio::sync::Mutex<()>,
    pub(crate) models: Arc<Models>,
    /// Set when the daemon stops.
    pub(crate) stopping: watch::Sender<bool>,
    /// Refused connections of other users.
    pub(crate) refused_users: LogThrottle,
}

impl Daemon {
    /// The store that all sessions share.
    pub fn store(&self) -> &Arc<LocalStore> {
        &self.store
    }

    /// A number that differs between daemons.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn begin_session(&self, pid: Option<i32>, outbox: Option<Outbox>) -> Arc<Session> {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let (store, events, now) = (Arc::clone(&self.store), Arc::clone(&self.events), self.clock.now());
        let session = Arc::new(Session::new(store, events, self.config.max_client_bytes, id, pid, outbox, now));
        self.lock().insert(id, Arc::clone(&session));
        session
    }

    /// The number of sessions besides those of the model process, which ends with the daemon.
    pub(crate) fn clients(&self) -> usize {
        let models = self.models.running().and_then(|process| i32::try_from(process.pid).ok());
        self.lock().values().filter(|session| session.pid.is_none() || session.pid != models).count()
    }

    /// Whether a client exists, or a tensor that a client would miss: one that is leased, or that nothing makes again. Results
    /// of computations and weights of models are found by keys, and made again when they are missing.
    pub(crate) fn is_used(&self) -> bool {
        let is_missed = |record: &Arc<Record>| record.key().is_none() || !record.holders().is_empty();
        self.clients() > 0 || !self.store.spilled("").is_empty() || self.store.records("").iter().any(is_missed)
    }

    /// The statistics of the store, with the memory that producers keep ready.
    pub(crate) fn stats(&self) -> Stats {
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        let ready_bytes = sessions.iter().map(|session| session.lock().ready_bytes()).fold(0, u64::saturating_add);
        Stats { ready_bytes, ..self.store.stats() }
    }

    /// All sessions, ordered by number.
    pub(crate) fn session_infos(&self) -> Vec<SessionInfo> {
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        let now = self.clock.now();
        let mut infos: Vec<_> = sessions.iter().map(|session| session.info(now)).collect();
        infos.sort_unstable_by_key(|info| info.session);
        infos
    }

    /// Records the session at the supervisor after its hello: after a takeover the next server waits for its client.
    /// `was` is the session that it resumed; `locked` tells whether the client keeps the session's lock.
    pub(crate) fn record_session(&self, session: &Session, was: Option<u64>, locked: bool) {
        if session.outbox().is_none() {
            return;
        }
        let client = SessionClient { pid: session.pid.unwrap_or(0), was, locked };
        session.set_resumable(client);
        self.events.record(Event::SessionStarted { session: session.id, client });
        // If the session has ended in between, its end was recorded before its start.
        if !self.lock().contains_key(&session.id) {
            self.events.record(Event::SessionEnded(session.id));
        }
    }

    /// Ends a session but for its leases and its shares of devices, as far as its client may resume them.
    pub(crate) fn end_session(&self, session: &Session) -> Option<LeftSession> {
        session.end_mark().set();
        self.lock().remove(&session.id);
        self.functions.remove_session(session.id);
        self.tasks.remove_session(session.id);
        self.channels.remove_session(session.id);
        let ended = session.end();
        self.ended.notify_one();
        let Ended::Now(left) = ended else { return None };
        if left.is_none() {
            self.events.record(Event::SessionEnded(session.id));
        }
        left
    }

    /// Keeps the leases of a session without a connection, and its shares of devices, while its client has its lock and does not
    /// resume it.
    pub(crate) fn keep_left(&self, left: LeftSession) {
        let session = left.session;
        let leases = left.tensors();
        let added = self.disconnected().add(left, self.clock.now());
        if let Err(left) = added {
            if !*self.stopping.borrow() {
                let pid = left.client.pid;
                tracing::warn!(
                    session,
                    "too many sessions without a connection: leases and shares of process {pid} end"
                );
            }
            return self.release_left(left);
        }
        // The next server releases all other leases when the sessions with connections have resumed.
        if leases.len() <= RECORDED_LEASES_MAX {
            self.events.record(Event::SessionLeft { session, leases });
            // If the session has ended in between, its end was recorded before.
            if !self.disconnected().has(session) {
                self.events.record(Event::SessionEnded(session));
            }
        }
        self.wake_timers();
    }

    /// Ends the sessions without a connection that are due for a check and over.
    pub(crate) fn check_left(&self) {
        let began = self.clock.now();
        let mut checked = self.disconnected().due(began);
        if checked.is_empty() {
            return;
        }
        checked.retain(|(session, client)| !self.locks.is_open(*session, client));
        let closed: Vec<u64> = checked.into_iter().map(|(session, _)| session).collect();
        let over = self.disconnected().checked(&closed, began, self.clock.now());
        over.into_iter().for_each(|left| self.release_left(left));
    }

    /// Ends a session without a connection.
    pub(crate) fn release_left(&self, left: LeftSession) {
        let session = left.session;
        drop(left);
        self.events.record(Event::SessionEnded(session));
    }

    /// Lets the thread of the timers see that something may be due earlier, or that the daemon stops.
    pub(crate) fn wake_timers(&self) {
        self.timers.get().into_iter().for_each(Thread::unpark);
    }

    /// The secret of a session, which only the daemon and the session's client know.
    pub(crate) fn token(&self, session: u64) -> String {
        Hasher::new("cotensor session v1").field(&self.secret).number(session).finish().to_string()
    }

    /// The HTTP server.
    ///
    /// # Errors
    /// `NotFound` when the daemon does not serve HTTP.
    pub(crate) fn http(&self) -> Result<Arc<dyn HttpService>> {
        let http = lock(&self.http).clone();
        let message = "this daemon does not serve HTTP; `cotensor dashboard`, `cotensor env openai` and `serve --listen` turn it on";
        http.ok_or_else(|| Error::not_found(message))
    }

    pub(crate) fn set_http(&self, http: Option<Arc<dyn HttpService>>) {
        *lock(&self.http) = http;
    }

    /// Makes room for a descriptor that the daemon keeps.
    ///
    /// # Errors
    /// `OverBudget` when the limit of open descriptors is reached and no tensor can be removed.
    pub(crate) fn room_for(&self, fd: OwnedFd) -> Result<OwnedFd> {
        descriptors::room_for(&self.store, fd)
    }

    /// Leases, slabs and claims of a former server whose sessions have not resumed.
    pub(crate) fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.events.orphans()
    }

    /// Sessions without a connection whose leases are kept.
    pub(crate) fn disconnected(&self) -> MutexGuard<'_, Disconnected> {
        lock(&self.disconnected)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        lock(&self.sessions)
    }
}
