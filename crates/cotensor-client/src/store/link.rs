//! The connection as the store's parts use it: one at a time, replaced when the daemon is.

use super::memory::Freed;
use crate::protocol::{self as p, Method};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::SharedIndexReader;
use cotensor_rpc::Deadline;
use cotensor_rpc::{Connection, OnNotice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long the daemon may take for what it does at once.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take for what others' work, or a disk, is waited for; it has limits of its own.
pub(super) const WORK_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long a new client goes on trying where servers die before they answer, and how often.
const RESTART_MAX: Duration = Duration::from_secs(2);
const RESTART_PAUSE: Duration = Duration::from_millis(20);

/// How often a daemon that dies at once is told that a session is over.
const FAREWELLS_MAX: u32 = 3;

/// A connection with a session on it.
pub(super) struct Live {
    pub(super) connection: Connection,
    /// Counts the connections of this client. What a session numbered (segments, slabs, tickets, reservations) means
    /// nothing to the next.
    pub(super) generation: u64,
    pub(super) session: u64,
    pub(super) token: String,
    /// The daemon's.
    pub(super) epoch: u64,
    pub(super) index: Option<Arc<SharedIndexReader>>,
    /// Whether this end ended it, while the daemon was there.
    left: AtomicBool,
}

impl Live {
    /// Whether the daemon was gone before this client ended the connection, if it did.
    pub(super) fn was_lost(&self) -> bool {
        !self.left.load(Ordering::SeqCst)
    }

    /// The session, with nothing to take up: for a daemon that waits for it.
    fn over(&self) -> p::Resume {
        p::Resume { session: self.session, token: self.token.clone(), leases: Vec::new(), claims: Vec::new() }
    }

    /// Calls a method once.
    pub(super) fn call<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.connection.call::<M>(params, fds, Some(ANSWER_TIMEOUT))
    }

    /// As [`call`](Self::call), within the deadline too, for answers that carry no lease: a late one ends nothing.
    pub(super) fn call_by<M: Method>(
        &self,
        params: &M::Params,
        deadline: &Deadline,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let timeout = deadline.left().map_or(ANSWER_TIMEOUT, |left| left.min(ANSWER_TIMEOUT));
        self.connection.call_or_forget::<M>(params, timeout)
    }

    /// As [`call`](Self::call), for what may have to wait for tensors that go to disk or come back from it.
    pub(super) fn call_long<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.connection.call::<M>(params, fds, Some(WORK_TIMEOUT))
    }

    /// Says something whose failure changes nothing here: a connection that is gone has given everything back.
    pub(super) fn tell<M: Method>(&self, params: &M::Params) {
        drop(self.connection.notify::<M>(params));
    }

    /// What is said when an answer comes after its session was replaced; it is asked for again then.
    pub(super) fn outlived(&self) -> Error {
        Error::new(ErrorKind::Io, "the daemon was replaced meanwhile")
    }
}

/// What a new connection begins with.
pub(super) struct Greeted {
    pub(super) connection: Connection,
    pub(super) hello: p::HelloResult,
    index: Option<Arc<SharedIndexReader>>,
}

impl Greeted {
    pub(super) fn live(self, generation: u64) -> Live {
        let Self { connection, hello, index } = self;
        let left = AtomicBool::new(false);
        Live { connection, generation, session: hello.session, token: hello.token, epoch: hello.epoch, index, left }
    }
}

/// Where the daemon is, and the connection to it that there is now.
pub(super) struct Link {
    pub(super) socket: PathBuf,
    pub(super) client: String,
    freed: Freed,
    live: RwLock<Arc<Live>>,
    /// One at a time connects anew.
    pub(super) turn: Mutex<()>,
    ended: AtomicBool,
}

impl Link {
    pub(super) fn new(socket: &Path, client: &str, freed: Freed, live: Live) -> Self {
        let (socket, client, live) = (socket.to_path_buf(), client.to_owned(), RwLock::new(Arc::new(live)));
        Self { socket, client, freed, live, turn: Mutex::default(), ended: AtomicBool::new(false) }
    }

    /// As [`greet`](Self::greet), for a new session. A server that dies before it answers is replaced within a moment.
    pub(super) fn greet_first(socket: &Path, client: &str, freed: &Freed, timeout: Duration) -> Result<Greeted> {
        let start = Instant::now();
        let until = start + RESTART_MAX.min(timeout);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match Self::greet_within(socket, client, freed, 0, || None, left) {
                Err(error) if error.kind() == ErrorKind::Io && Instant::now() < until => {
                    std::thread::sleep(RESTART_PAUSE)
                }
                outcome => return outcome,
            }
        }
    }

    /// Connects and says hello. Notices of slabs count for `generation`.
    pub(super) fn greet(
        socket: &Path,
        client: &str,
        freed: &Freed,
        generation: u64,
        resume: impl FnOnce() -> Option<p::Resume>,
    ) -> Result<Greeted> {
        Self::greet_within(socket, client, freed, generation, resume, ANSWER_TIMEOUT)
    }

    fn greet_within(
        socket: &Path,
        client: &str,
        freed: &Freed,
        generation: u64,
        resume: impl FnOnce() -> Option<p::Resume>,
        timeout: Duration,
    ) -> Result<Greeted> {
        let freed = freed.clone();
        let on_notice: OnNotice = Box::new(move |method, params, _| {
            if method == p::notice::SLAB_FREED
                && let Ok(params) = serde_json::from_str::<p::FreedParams>(params.get())
            {
                freed.add(generation, &params);
            }
        });
        let connection = crate::connect(socket, on_notice)?;
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: client.to_owned(), resume: resume() };
        let greeted = connection.call::<p::Hello>(&hello, Vec::new(), Some(timeout));
        let (hello, fds) = greeted.map_err(|error| error.in_file(socket))?;
        let index = match fds.first() {
            Some(fd) if hello.index_slots > 0 => Some(Arc::new(SharedIndexReader::open(fd, hello.index_slots)?)),
            _ => None,
        };
        Ok(Greeted { connection, hello, index })
    }

    pub(super) fn greet_again(&self, generation: u64, resume: impl FnOnce() -> Option<p::Resume>) -> Result<Greeted> {
        Self::greet(&self.socket, &self.client, &self.freed, generation, resume)
    }

    pub(super) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn replace(&self, live: Arc<Live>) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// Ends the connection for good.
    pub(super) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let live = self.live();
        if !live.connection.has_ended() {
            live.left.store(true, Ordering::SeqCst);
        }
        live.connection.close();
    }

    /// Tells the daemon that replaced the one of `lost` that nobody comes back from there: it would wait for that as long as this
    /// process lives. For want of a daemon, nobody is told.
    pub(super) fn farewell(socket: &Path, client: &str, lost: &Live) {
        for _ in 0..FAREWELLS_MAX {
            match Self::greet(socket, client, &Freed::default(), 0, || Some(lost.over())) {
                // That one died, too.
                Err(error) if error.kind() == ErrorKind::Io => {}
                _ => return,
            }
        }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
