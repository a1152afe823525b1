//! The locks of sessions: the kernel tells which clients still have mapped tensors.

use cotensor_core::{ErrorKind, Result};
use cotensor_memory::process::{LockTable, is_alive as is_process_alive};
use cotensor_supervisor::SessionClient;
use std::os::fd::OwnedFd;

/// The lock table of a daemon. All servers of a supervisor have the same one.
pub(crate) struct SessionLocks(LockTable);

impl SessionLocks {
    pub(crate) fn new(table: LockTable) -> Self {
        Self(table)
    }

    /// Takes the lock of a session, for its client. None where the system has no such locks, as some sandboxes.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached.
    pub(crate) fn lock(&self, session: u64) -> Result<Option<OwnedFd>> {
        match self.0.lock(session) {
            Err(error) if error.kind() == ErrorKind::OverBudget => Err(error),
            Err(error) => {
                tracing::debug!(session, "no lock: {error}");
                Ok(None)
            }
            Ok(lock) => Ok(Some(lock)),
        }
    }

    /// Whether a client that resumes session `number` has given up `session`: it is that one, or one that resumed it and whose answer the
    /// client did not receive. A client that has the lock of `session` has received the answer: an earlier request, which is late, resumes.
    pub(crate) fn is_former(&self, number: u64, session: u64, client: &SessionClient) -> bool {
        let is_known = || client.locked && self.0.is_locked(session).unwrap_or(true);
        session == number || (client.was == Some(number) && !is_known())
    }

    /// Whether the client of a session that has no connection may still resume it. A client that did not receive the answer to a
    /// hello has the lock of the session before.
    pub(crate) fn is_open(&self, session: u64, client: &SessionClient) -> bool {
        let is_locked = |session| self.0.is_locked(session).unwrap_or(true);
        let keeps_lock = !client.locked || is_locked(session) || client.was.is_some_and(is_locked);
        keeps_lock && is_alive(client.pid)
    }
}

/// Whether a process is alive. A zombie is not; a process of another PID namespace, whose number is 0 here, may be.
fn is_alive(pid: i32) -> bool {
    pid <= 0 || is_process_alive(pid.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn session_is_open_while_its_lock_or_that_of_the_session_before_is_held() {
        let locks = SessionLocks::new(LockTable::create().unwrap());
        let client = |was, locked| SessionClient { pid: std::process::id() as i32, was, locked };
        let lock = locks.lock(5).unwrap();
        assert!(locks.is_open(5, &client(None, true)) && !locks.is_open(6, &client(None, true)));
        // The client did not receive the answer with lock 6, so it keeps lock 5 and resumes session 5.
        assert!(locks.is_open(6, &client(Some(5), true)));
        assert!(locks.is_open(6, &client(None, false)), "without a lock, the process decides");
        assert!(locks.is_former(5, 5, &client(None, true)) && locks.is_former(5, 6, &client(Some(5), true)));
        let next = locks.lock(6).unwrap();
        assert!(!locks.is_former(5, 6, &client(Some(5), true)), "the client has received the answer");
        drop(next);
        // A child of a dead process may have its descriptors.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id() as i32;
        child.wait().unwrap();
        assert!(!locks.is_open(5, &SessionClient { pid: dead, was: None, locked: true }));
        drop(lock);
        assert!(!locks.is_open(5, &client(None, true)) && !locks.is_open(6, &client(Some(5), true)));
    }

    #[test]
    fn dead_process_is_not_alive() {
        assert!(is_alive(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        while is_alive(pid) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_alive(pid), "a zombie is dead");
        child.wait().unwrap();
        assert!(!is_alive(pid) && is_alive(0), "a process of another namespace may be alive");
    }
}
