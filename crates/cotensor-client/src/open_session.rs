//! A session that the next server of a daemon continues.

use crate::protocol as p;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_memory::process::fd_limit_error;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// The descriptor of the lock among those of the answer to `session.hello`, after the index.
const LOCK: usize = 1;

/// The number and the secret of a session, and its lock. After the server's death, the next server waits for the session
/// as long as the lock's descriptor is open.
pub struct OpenSession {
    number: u64,
    token: String,
    shares_pids: bool,
    lock: Mutex<Option<OwnedFd>>,
}

impl OpenSession {
    /// The parameters of a `session.hello` for [`new`](Self::new).
    pub fn hello(client: &str, resume: Option<p::Resume>) -> p::HelloParams {
        p::HelloParams { protocol: p::PROTOCOL, client: client.to_owned(), resume, lock: true }
    }

    /// The session of an answer. Takes the lock's descriptor out of `fds`.
    ///
    /// # Errors
    /// `OverBudget` when the kernel has dropped the descriptor, because this process has reached its limit.
    pub fn new(hello: &p::HelloResult, fds: &mut Vec<OwnedFd>) -> Result<Self> {
        let lock = (fds.len() > LOCK).then(|| fds.remove(LOCK));
        if hello.locked && lock.is_none() {
            return Err(fd_limit_error());
        }
        Ok(Self {
            number: hello.session,
            token: hello.token.clone(),
            shares_pids: hello.shares_pids(),
            lock: Mutex::new(lock),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether this process and the daemon see processes by the same numbers.
    pub(crate) fn shares_pids(&self) -> bool {
        self.shares_pids
    }

    /// Resumes the session, with nothing else.
    pub fn resume(&self) -> p::Resume {
        let (session, token) = (self.number, self.token.clone());
        p::Resume { session, token, leases: Vec::new(), claims: Vec::new(), devices: Vec::new() }
    }

    /// Releases the lock before the value is dropped: the client has ended the session.
    pub(crate) fn end(&self) {
        let lock = lock(&self.lock).take();
        drop(lock);
    }
}
