//! One store for every process of a machine: a Unix socket, sessions, and the store behind them.

mod config;
mod connection;
mod counters;
mod dispatch;
pub mod doctor;
mod embed;
mod functions;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
pub mod http;
mod index;
pub mod keeper;
mod models;
mod outgoing;
mod run;
pub mod scan;
mod segment;
mod session;
mod socket;
mod takeover;

pub use config::{Config, default_socket};
pub use embed::{Embedded, connect_or_embed};
pub use models::model_functions;
pub use run::{Ready, run};
pub use socket::Listening;

use crate::dispatch::Methods;
use crate::index::{INDEX_SLOTS, Slots};
use crate::keeper::Kept;
use crate::outgoing::Outgoing;
use crate::segment::Slabs;
use crate::session::Session;
use crate::takeover::{Changes, Orphans};
use cotensor_client::protocol::SessionInfo;
use cotensor_core::{Error, ErrorKind, Hasher, Result};
use cotensor_memory::Index;
use cotensor_store::{EmbeddedStore, Watch};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::UnixListener;

/// Numbers in JSON are exact up to 2^53, and a session's has the server's above 32 bits.
const SERVERS_MASK: u64 = (1 << 20) - 1;

/// Of the descriptors that may be open, one in this many is for connections and answers.
const FDS_RESERVED: u64 = 8;

/// A daemon: the store, and who uses it.
pub struct Daemon {
    pub(crate) config: Config,
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) methods: Methods,
    pub(crate) functions: functions::Registry,
    pub(crate) slabs: Slabs,
    /// Differs between daemons.
    pub(crate) epoch: u64,
    secret: [u8; 32],
    next_session: AtomicU64,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    orphans: Mutex<Orphans>,
}

impl Daemon {
    /// A daemon with an empty store of sealed memory.
    ///
    /// # Errors
    /// `Io` when the system has no random numbers.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        Self::with(config, Index::create(INDEX_SLOTS)?, None)
    }

    fn with(config: Config, index: Index, kept: Option<Arc<Kept>>) -> Result<Arc<Self>> {
        let mut secret = [0; 32];
        let mut epoch = [0; 8];
        getrandom::fill(&mut secret)
            .and_then(|()| getrandom::fill(&mut epoch))
            .map_err(|error| Error::new(cotensor_core::ErrorKind::Io, error.to_string()))?;
        // Sessions of one keeper's servers have one number each.
        let mut first_session = 1;
        if let Some(kept) = &kept {
            secret = kept.secret();
            first_session |= (kept.servers() & SERVERS_MASK) << 32;
        }
        let seed = Hasher::new("cotensor slots v1").field(&secret).finish();
        let (seed, _) = seed.as_bytes().split_at(8);
        let changes = Arc::new(Changes { slots: Slots::new(index)?, kept });
        let store = EmbeddedStore::builder()
            .max_memory_bytes(config.max_memory_bytes)
            .claim_wait_max(config.claim_wait_max)
            .seed(seed.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte)))
            .watch(Arc::clone(&changes) as Arc<dyn Watch>)
            .build();
        Ok(Arc::new(Self {
            store,
            changes,
            methods: handlers::methods(),
            functions: functions::Registry::default(),
            slabs: Slabs::default(),
            // Numbers in JSON are exact up to 2^53.
            epoch: u64::from_le_bytes(epoch) >> 11,
            secret,
            config,
            next_session: AtomicU64::new(first_session),
            sessions: Mutex::default(),
            orphans: Mutex::default(),
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

    /// A descriptor that is to be kept, as long as others can still connect and be answered: nearly all of what may be
    /// open is a client's to fill, and the last of it is not. What nobody leases goes first.
    ///
    /// # Errors
    /// `OverBudget` when as many are open as may be.
    pub(crate) fn room_for(&self, fd: OwnedFd) -> Result<OwnedFd> {
        // The system gives the lowest number that is free, so a high one says how many there are.
        let max = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |max| max - max / FDS_RESERVED);
        let high = |fd: &OwnedFd| u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= max);
        if !high(&fd) {
            return Ok(fd);
        }
        cotensor_store::Store::optimize(&*self.store);
        let lower = fd.try_clone().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        match high(&lower) {
            false => Ok(lower),
            true => Err(Error::new(ErrorKind::OverBudget, "the daemon has as many descriptors open as it may")),
        }
    }

    /// How it runs.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves connections on `listening` until `stop` is done, then ends every session.
    ///
    /// # Errors
    /// `Io` when the socket fails.
    pub async fn serve(self: &Arc<Self>, listening: &Listening, stop: impl Future<Output = ()>) -> Result<()> {
        let io = |error: std::io::Error| Error::io("listening", &error).in_file(listening.path());
        let listener = UnixListener::from_std(listening.listener().try_clone().map_err(io)?).map_err(io)?;
        let mut connections = tokio::task::JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            while connections.try_join_next().is_some() {}
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if connections.len() < self.config.connections_max => {
                        connections.spawn(connection::serve(Arc::clone(self), stream));
                    }
                    Ok(_) => tracing::warn!("a connection was refused: {} are open", connections.len()),
                    Err(error) => {
                        // Out of descriptors, mostly: some will be closed.
                        tracing::warn!("a connection was not accepted: {error}");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                },
            }
        }
        if let Some(kept) = &self.changes.kept {
            kept.stop();
        }
        connections.shutdown().await;
        for session in self.lock().drain() {
            session.1.end();
        }
        Ok(())
    }

    pub(crate) fn begin_session(self: &Arc<Self>, pid: Option<i32>, outgoing: Option<Outgoing>) -> Arc<Session> {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(Arc::clone(self), id, pid, outgoing));
        self.lock().insert(id, Arc::clone(&session));
        session
    }

    /// What is known of every session, by number.
    pub(crate) fn session_infos(&self) -> Vec<SessionInfo> {
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        let mut infos: Vec<_> = sessions.iter().map(|session| session.info()).collect();
        infos.sort_unstable_by_key(|info| info.session);
        infos
    }

    pub(crate) fn end_session(&self, session: &Session) {
        self.lock().remove(&session.id);
        session.end();
    }

    /// The secret of a session, which only the daemon and the session's client know.
    pub(crate) fn token(&self, session: u64) -> String {
        cotensor_core::Hasher::new("cotensor session v1").field(&self.secret).number(session).finish().to_string()
    }

    /// What a former daemon left and nobody has come for.
    pub(crate) fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
