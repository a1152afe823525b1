//! Reconnection after the daemon was replaced, with the leases, claims and slabs of this process.

use super::connection::DaemonConnection;
use super::lease_table::LeaseTable;
use super::memories::Memories;
use super::ready::ReadyMemory;
use super::reopened::Reopenings;
use super::session::{ANSWER_TIMEOUT, Session};
use super::slabs::Slabs;
use super::tickets::Tickets;
use crate::protocol::{self as p, Method};
use crate::start::Starter;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The most attempts of one call, while the daemon dies again and again.
const ATTEMPTS_MAX: u32 = 10;
/// How long no daemon may listen. With a supervisor, the socket always exists, and hello waits for the next server.
const MISSING_TIMEOUT: Duration = Duration::from_secs(1);
/// The most daemons that one call starts, while each is stopped before it answers.
const STARTS_MAX: u32 = 3;
const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(5);
const RETRY_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// How often an idle client looks for a new daemon.
const IDLE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The connection to the daemon, and the state that each new session restores.
pub(crate) struct Reconnector {
    pub(super) connection: Arc<DaemonConnection>,
    pub(super) leases: LeaseTable,
    pub(super) memories: Arc<Memories>,
    pub(super) slabs: Slabs,
    pub(super) tickets: Tickets,
    pub(crate) reopened: Reopenings,
    pub(super) ready: ReadyMemory,
    /// Starts the next daemon for a call, after all processes of one have ended.
    pub(super) starter: Option<Starter>,
}

impl Reconnector {
    /// Runs `op` in the current session, and again in the next one when the daemon was replaced meanwhile. `op` must be
    /// idempotent.
    pub(crate) fn retry<T>(&self, mut op: impl FnMut(&Arc<Session>) -> Result<T>) -> Result<T> {
        let mut attempts = 0;
        loop {
            let session = self.connection.session();
            let lost = |session: &Session| session.connection.closed().is_some() || !self.is_current(session);
            if lost(&session) && !self.connection.is_closed() {
                self.reconnect_or_start(&session)?;
                continue;
            }
            let error = match op(&session) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            attempts += 1;
            // A call that timed out is not repeated. The next call finds a new connection.
            let closed = self.connection.is_closed();
            if attempts == ATTEMPTS_MAX || error.kind() == ErrorKind::TimedOut || closed || !lost(&session) {
                return Err(error);
            }
        }
    }

    /// Calls an idempotent method.
    pub(crate) fn call<M: Method>(&self, params: &M::Params) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.retry(|session| session.call::<M>(params, Vec::new()))
    }

    /// As [`call`](Self::call), for answers without a lease: an answer after the deadline is dropped.
    pub(super) fn call_by<M: Method>(
        &self,
        params: &M::Params,
        deadline: &Deadline,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.retry(|session| session.call_by::<M>(params, deadline))
    }

    fn is_current(&self, session: &Session) -> bool {
        self.connection.session().generation == session.generation
    }

    /// Replaces a lost session. Starts a daemon if none has appeared within a second.
    ///
    /// # Errors
    /// As [`reconnect`](Self::reconnect); those of [`Starter::start`].
    pub(super) fn reconnect_or_start(&self, lost: &Session) -> Result<()> {
        self.replace(lost, self.starter.as_ref())
    }

    /// Replaces a lost session, for a client that is idle: a daemon that the user has stopped stays away until it is needed.
    ///
    /// # Errors
    /// `Unreachable` when no daemon appears within a second, the daemon's errors, `Conflict` for a closed client.
    pub(super) fn reconnect(&self, lost: &Session) -> Result<()> {
        self.replace(lost, None)
    }

    fn replace(&self, lost: &Session, starter: Option<&Starter>) -> Result<()> {
        let _guard = lock(&self.connection.reconnecting);
        if !self.is_current(lost) {
            return Ok(());
        }
        lost.connection.close();
        self.leases.forget_names();
        let (start, mut delay) = (Instant::now(), RETRY_INTERVAL_MIN);
        let (mut generation, mut starts) = (lost.generation, 0);
        let mut failure = None;
        for _ in 0..ATTEMPTS_MAX {
            loop {
                if self.connection.is_closed() {
                    return Err(Error::new(ErrorKind::Conflict, "this client has disconnected"));
                }
                generation += 1;
                match self.try_reconnect(lost, generation) {
                    Ok(()) => return Ok(()),
                    Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::OverBudget) => {
                        failure = Some(error);
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::Unreachable && start.elapsed() < MISSING_TIMEOUT => {}
                    Err(error) if error.kind() == ErrorKind::Unreachable && starts < STARTS_MAX => {
                        let Some(starter) = starter else { return Err(error) };
                        starts += 1;
                        starter.start(ANSWER_TIMEOUT)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                std::thread::sleep(delay);
                delay = (delay * 2).min(RETRY_INTERVAL_MAX);
            }
            std::thread::sleep(delay);
        }
        let refused = failure.filter(|error| error.kind() == ErrorKind::OverBudget);
        let ended = || Error::new(ErrorKind::Io, "each daemon ended before it answered: see its log");
        Err(refused.unwrap_or_else(ended).in_file(&self.connection.socket))
    }

    fn try_reconnect(&self, lost: &Session, generation: u64) -> Result<()> {
        let (mut held, mut claimed) = (Vec::new(), Vec::new());
        let resume = || {
            // From here on, answers of the former session are refused.
            let (ids, leases) = self.leases.begin(generation);
            held = ids;
            claimed = self.tickets.begin(generation);
            self.slabs.begin(generation);
            let claims = claimed.iter().map(|key| key.0.to_string()).collect();
            Some(p::Resume { leases, claims, ..lost.open.resume() })
        };
        let greeted = match self.connection.greet_again(generation, resume) {
            // This daemon does not know the session: there is no supervisor, or it died as well. All leases are lost.
            Err(error) if error.field() == Some(p::RESUME_TOKEN) => {
                self.slabs.retire();
                self.connection.greet_again(generation, || None)?
            }
            greeted => greeted?,
        };
        let (resumed, tickets) = (greeted.hello.resumed.clone(), greeted.hello.tickets.clone());
        let session = Arc::new(greeted.into_session(generation));
        self.slabs.reopen(&session)?;
        self.reopened.reopen(&session)?;
        self.ready.reopen(&session);
        let abandoned = self.tickets.renew(&claimed, &tickets);
        self.leases.renew(&session, &held, &resumed);
        for ticket in abandoned {
            session.notify::<p::Abandon>(&p::TicketParams { ticket });
        }
        Ok(())
    }
}

/// Starts a thread that reconnects as soon as the connection ends, also without a call: the next daemon waits for this
/// process's leases only for a short time. The thread ends with the store.
///
/// The thread holds the store while it reconnects, so that the store is not closed in between.
pub(super) fn watch<S: Send + Sync + 'static>(
    connection: &DaemonConnection,
    store: Weak<S>,
    daemon: fn(&S) -> &Reconnector,
) -> Result<()> {
    // Before the thread runs: the store may be dropped by then.
    let mut session = connection.session();
    let watching = move || {
        loop {
            session.connection.wait_for_end();
            let store = store.upgrade().filter(|store| !daemon(store).connection.is_closed());
            let Some(store) = store else { return };
            let reconnected = daemon(&store).reconnect(&session);
            session = daemon(&store).connection.session();
            drop(store);
            if reconnected.is_err() {
                std::thread::sleep(IDLE_RETRY_INTERVAL);
            }
        }
    };
    let thread = std::thread::Builder::new().name("reconnect".to_owned()).stack_size(256 << 10);
    drop(thread.spawn(watching).map_err(|error| Error::io("starting a thread", &error))?);
    Ok(())
}
