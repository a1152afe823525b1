//! One store for every process of a machine: a Unix socket, sessions, and the store behind them.

mod config;
mod connection;
mod counters;
mod descriptors;
mod dispatch;
mod embed;
mod functions;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
pub mod http;
mod index;
pub mod keeper;
mod place;
mod refusals;
mod run;
mod segment;
mod session;
mod signals;
mod socket;
mod spill;
mod takeover;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;

pub use config::{Config, default_socket};
pub use embed::{Embedded, connect_or_embed, connect_or_serve};
pub use run::{Ready, Service};
pub use socket::Listening;

use crate::dispatch::Methods;
use crate::http::Dashboard;
use crate::index::{INDEX_SLOTS, Slots};
use crate::keeper::Kept;
use crate::refusals::Refusals;
use crate::segment::Slabs;
use crate::session::Session;
use crate::spill::{Files, IntoFiles};
use crate::takeover::{Changes, Orphans};
use cotensor_client::protocol::SessionInfo;
use cotensor_core::{Error, ErrorKind, Hasher, Result};
use cotensor_memory::SharedIndex;
use cotensor_rpc::{FrameRoom, Outbox};
use cotensor_store::{EmbeddedStore, StoreObserver};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

/// How long connections may take to end once the daemon is told to stop.
const STOP_PATIENCE: Duration = Duration::from_millis(200);
/// How often a daemon looks whether its socket and its lock are still where clients and other daemons find them.
const PLACE_INTERVAL: Duration = Duration::from_secs(1);
/// A daemon that no client can find, and none uses, ends after so many looks in a row that found another daemon in its place. One
/// look may find a daemon that is just being refused.
const MISPLACED_LOOKS: u32 = 3;
/// From a session's end until the memory that it took is given back: sessions that end together are one occasion, and others
/// may begin.
pub(crate) const TIDY_AFTER: Duration = Duration::from_secs(1);
/// What the budget counts for a tensor beside its memory: names, records, entries and one lease, which the server and its
/// supervisor keep in their heaps. More for its texts ([`TEXT_COPIES`](cotensor_store::backend::TEXT_COPIES)) and dimensions
/// ([`DIMENSION_BYTES`](cotensor_store::backend::DIMENSION_BYTES)).
pub const METADATA_BYTES: u64 = 864;
/// Numbers in JSON are exact up to 2^53, and a session's has the server's above 32 bits.
const SERVERS_MASK: u64 = (1 << 20) - 1;

/// A daemon: the store, and who uses it.
pub struct Daemon {
    pub(crate) config: Config,
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) methods: Methods,
    pub(crate) functions: functions::Registry,
    pub(crate) slabs: Slabs,
    /// For the messages that all sessions send.
    pub(crate) frames: Arc<FrameRoom>,
    /// Differs between daemons.
    pub(crate) epoch: u64,
    secret: [u8; 32],
    next_session: AtomicU64,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    /// Told of every session's end.
    ended: Notify,
    /// Where HTTP is answered, while it is.
    dashboard: Mutex<Option<Arc<Dashboard>>>,
    /// Connections of other users.
    pub(crate) strangers: Refusals,
}

impl Daemon {
    /// A daemon with an empty store of sealed memory.
    ///
    /// # Errors
    /// `Io` when the system has no random numbers.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        Self::with(config, SharedIndex::create(INDEX_SLOTS)?, None)
    }

    fn with(config: Config, index: SharedIndex, kept: Option<Arc<Kept>>) -> Result<Arc<Self>> {
        let mut secret = [0; 32];
        let mut epoch = [0; 8];
        getrandom::fill(&mut secret)
            .and_then(|()| getrandom::fill(&mut epoch))
            .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        // Sessions of one keeper's servers have one number each.
        let mut first_session = 1;
        if let Some(kept) = &kept {
            secret = kept.secret();
            first_session |= (kept.servers() & SERVERS_MASK) << 32;
        }
        let seed = Hasher::new("cotensor slots v1").field(&secret).finish();
        let (seed, _) = seed.as_bytes().split_at(8);
        let spill = config.spill.as_deref();
        let files = spill.map(|folder| Files::open(folder, &config.socket, config.max_spill_bytes)).transpose()?;
        let changes =
            Arc::new(Changes { slots: Slots::new(index)?, kept, files: files.clone(), orphans: Mutex::default() });
        let mut store = EmbeddedStore::builder();
        if let Some(files) = files {
            store = store.spill(Arc::new(IntoFiles(files)));
        }
        let store = store
            .max_memory_bytes(config.max_memory_bytes)
            .config(config.sharing.clone())
            .metadata_bytes(METADATA_BYTES)
            .claim_wait_max(config.claim_wait_max)
            .seed(seed.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte)))
            .observer(Arc::clone(&changes) as Arc<dyn StoreObserver>)
            .build();
        Ok(Arc::new(Self {
            store,
            changes,
            methods: handlers::methods(),
            functions: functions::Registry::default(),
            slabs: Slabs::default(),
            frames: FrameRoom::of_server(),
            // Numbers in JSON are exact up to 2^53.
            epoch: u64::from_le_bytes(epoch) >> 11,
            secret,
            config,
            next_session: AtomicU64::new(first_session),
            sessions: Mutex::default(),
            ended: Notify::new(),
            dashboard: Mutex::default(),
            strangers: Refusals::default(),
        }))
    }

    /// The store that all sessions share.
    pub fn store(&self) -> &Arc<EmbeddedStore> {
        &self.store
    }

    /// A number that differs between daemons.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How it runs.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves connections on `listening` until `stop` is done, then ends every session. Makes the socket and its lock anew
    /// when their files are removed.
    ///
    /// # Errors
    /// `Io` when the socket fails; `Conflict` when another daemon took its place and no client is connected any more.
    pub async fn serve(self: &Arc<Self>, listening: &mut Listening, stop: impl Future<Output = ()>) -> Result<()> {
        let mut listener = acceptor(listening)?;
        let mut look = tokio::time::interval(PLACE_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The error that keeps the socket from being made anew, which is logged once, and how many looks in a row found another
        // daemon.
        let (mut misplaced, mut conflicts) = (String::new(), 0);
        let mut outcome = Ok(());
        // Held by each connection's thread.
        let open = Arc::new(Semaphore::new(self.config.connections_max));
        let (refused, not_accepted) = (Refusals::default(), Refusals::default());
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = look.tick() => match listening.mend() {
                    Ok(false) => conflicts = 0,
                    Ok(true) => {
                        conflicts = 0;
                        tracing::warn!("{} or its lock was removed: made again", listening.path().display());
                        misplaced.clear();
                        listener = acceptor(listening)?;
                        if let Some(kept) = &self.changes.kept {
                            kept.moved(listening);
                        }
                    }
                    Err(error) => {
                        let message = error.to_string();
                        if message != misplaced {
                            tracing::error!("new clients do not find this daemon: {message}");
                            misplaced = message;
                        }
                        conflicts = if error.kind() == ErrorKind::Conflict { conflicts + 1 } else { 0 };
                        if conflicts >= MISPLACED_LOOKS && !self.is_used() {
                            outcome = Err(error);
                            break;
                        }
                    }
                },
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if let Err(error) = self.accept(stream, &open)
                            && let Some(count) = refused.note()
                        {
                            tracing::warn!("{count} connections were refused: {error}");
                        }
                    }
                    Err(error) => {
                        // Out of descriptors, mostly: some will be closed.
                        if let Some(count) = not_accepted.note() {
                            tracing::warn!("{count} connections were not accepted: {error}");
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        match (&self.changes.kept, &self.changes.files) {
            (Some(kept), _) => kept.stop(),
            (None, Some(files)) => files.remove(),
            (None, None) => {}
        }
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        sessions.iter().filter_map(|session| session.outbox()).for_each(Outbox::end);
        // One that is busy ends when it can.
        let all = u32::try_from(self.config.connections_max).unwrap_or(u32::MAX);
        drop(tokio::time::timeout(STOP_PATIENCE, open.acquire_many(all)).await);
        for (_, session) in self.lock().drain() {
            session.end();
        }
        outcome
    }

    fn accept(self: &Arc<Self>, stream: UnixStream, open: &Arc<Semaphore>) -> Result<()> {
        let full = |_| Error::new(ErrorKind::Conflict, format!("{} are open", self.config.connections_max));
        let place = Arc::clone(open).try_acquire_owned().map_err(full)?;
        let io = |error: std::io::Error| Error::io("accepting", &error);
        let stream = stream.into_std().map_err(io)?;
        stream.set_nonblocking(false).map_err(io)?;
        connection::serve(Arc::clone(self), stream, place)
    }

    pub(crate) fn begin_session(self: &Arc<Self>, pid: Option<i32>, outbox: Option<Outbox>) -> Arc<Session> {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(Arc::clone(self), id, pid, outbox));
        self.lock().insert(id, Arc::clone(&session));
        session
    }

    /// Whether anybody is connected.
    pub(crate) fn is_used(&self) -> bool {
        !self.lock().is_empty()
    }

    /// What is known of every session, by number.
    pub(crate) fn session_infos(&self) -> Vec<SessionInfo> {
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        let mut infos: Vec<_> = sessions.iter().map(|session| session.info()).collect();
        infos.sort_unstable_by_key(|info| info.session);
        infos
    }

    /// The session's client has said who it is: should this server die, the next one waits for it.
    pub(crate) fn joined(&self, session: &Session, was: Option<u64>) {
        if session.outbox().is_none() {
            return;
        }
        let pid = session.pid.unwrap_or(0);
        self.changes.tell(keeper::Change::Joined { session: session.id, member: keeper::Member { pid, was } });
        // Over already, and that was told first.
        if !self.lock().contains_key(&session.id) {
            self.changes.tell(keeper::Change::Left(session.id));
        }
    }

    pub(crate) fn end_session(&self, session: &Session) {
        if self.lock().remove(&session.id).is_some() {
            self.changes.tell(keeper::Change::Left(session.id));
        }
        session.end();
        self.ended.notify_one();
    }

    /// The secret of a session, which only the daemon and the session's client know.
    pub(crate) fn token(&self, session: u64) -> String {
        cotensor_core::Hasher::new("cotensor session v1").field(&self.secret).number(session).finish().to_string()
    }

    /// Where HTTP is answered.
    ///
    /// # Errors
    /// `NotFound` when it is not.
    pub(crate) fn dashboard(&self) -> Result<Arc<Dashboard>> {
        let dashboard = self.dashboard.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let message = "this daemon does not answer HTTP: start it with `cotensor serve --listen`";
        dashboard.ok_or_else(|| Error::not_found(message))
    }

    pub(crate) fn set_dashboard(&self, dashboard: Option<Arc<Dashboard>>) {
        *self.dashboard.lock().unwrap_or_else(PoisonError::into_inner) = dashboard;
    }

    /// What a former daemon left and nobody has come for.
    pub(crate) fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.changes.orphans()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn acceptor(listening: &Listening) -> Result<UnixListener> {
    let io = |error: std::io::Error| Error::io("listening", &error).in_file(listening.path());
    UnixListener::from_std(listening.listener().try_clone().map_err(io)?).map_err(io)
}
