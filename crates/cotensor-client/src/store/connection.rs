//! The client's connection to the daemon, replaced together with the daemon.

use super::freed_ranges::FreedRanges;
use super::session::{ANSWER_TIMEOUT, Greeted, Session};
use crate::OpenSession;
use crate::protocol as p;
use cotensor_core::sync::{read, write};
use cotensor_core::{ErrorKind, Result};
use cotensor_memory::SharedIndexReader;
use cotensor_rpc::OnNotification;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// How long a new client retries while servers die before they answer.
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);
const RESTART_INTERVAL: Duration = Duration::from_millis(20);

/// The daemon's socket and the current session.
pub(super) struct DaemonConnection {
    pub(super) socket: PathBuf,
    pub(super) client: String,
    freed: FreedRanges,
    session: RwLock<Arc<Session>>,
    /// Held by the thread that reconnects.
    pub(super) reconnecting: Mutex<()>,
    closed: AtomicBool,
}

impl DaemonConnection {
    pub(super) fn new(socket: &Path, client: &str, freed: FreedRanges, session: Session) -> Self {
        let (socket, client, session) = (socket.to_path_buf(), client.to_owned(), RwLock::new(Arc::new(session)));
        Self { socket, client, freed, session, reconnecting: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// As [`greet`](Self::greet), for a new session. Retries when a server dies before it answers: its supervisor
    /// replaces it.
    pub(super) fn greet_first(socket: &Path, client: &str, freed: &FreedRanges, timeout: Duration) -> Result<Greeted> {
        let start = Instant::now();
        let until = start + RESTART_TIMEOUT.min(timeout);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match Self::greet(socket, client, freed, 0, || None, left) {
                Err(error) if error.kind() == ErrorKind::Io && Instant::now() < until => {
                    std::thread::sleep(RESTART_INTERVAL)
                }
                outcome => return outcome,
            }
        }
    }

    /// Connects and opens or resumes a session. Notifications about slabs count for `generation`.
    fn greet(
        socket: &Path,
        client: &str,
        freed: &FreedRanges,
        generation: u64,
        resume: impl FnOnce() -> Option<p::Resume>,
        timeout: Duration,
    ) -> Result<Greeted> {
        let freed = freed.clone();
        let on_notification: OnNotification = Box::new(move |method, params, _| {
            if method == p::notification::SLAB_FREED
                && let Ok(params) = serde_json::from_str::<p::FreedParams>(params.get())
            {
                freed.add(generation, &params);
            }
        });
        let connection = crate::connect(socket, on_notification)?;
        let hello = OpenSession::hello(client, resume());
        let greeted = connection.call::<p::Hello>(&hello, Vec::new(), Some(timeout));
        let (hello, mut fds) = greeted.map_err(|error| error.in_file(socket))?;
        let open = OpenSession::new(&hello, &mut fds)?;
        let index = match fds.first() {
            Some(fd) if hello.index_slots > 0 => Some(Arc::new(SharedIndexReader::open(fd, hello.index_slots)?)),
            _ => None,
        };
        Ok(Greeted { connection, open, hello, index })
    }

    pub(super) fn greet_again(&self, generation: u64, resume: impl FnOnce() -> Option<p::Resume>) -> Result<Greeted> {
        Self::greet(&self.socket, &self.client, &self.freed, generation, resume, ANSWER_TIMEOUT)
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&read(&self.session))
    }

    /// Makes `session` the current one; closes its connection if this one was closed meanwhile.
    pub(super) fn replace(&self, session: Arc<Session>) {
        *write(&self.session) = Arc::clone(&session);
        // After the write: either this thread finds the close, or `close` finds this session.
        if self.is_closed() {
            session.connection.close();
        }
    }

    /// Closes the connection. It is not replaced after that. The daemon keeps the leases as long as this client keeps the session's lock.
    pub(super) fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.session().connection.close();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}
