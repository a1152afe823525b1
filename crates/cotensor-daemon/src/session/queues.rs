//! The queues of every version that a session reads.

use super::session::Session;
use cotensor_client::protocol::Transport;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::{ChangePosition, ChangesFuture, EmbeddedStore, EveryVersion, Lease, NameStore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most queues of one session.
const QUEUES_MAX: usize = 64;
/// The client's holder of the versions that its queues lease.
const HOLDER: &str = "watch";

/// The queues of a session by their numbers. Its lock is taken while that of the session's resources is held, never the reverse.
#[derive(Default)]
pub(super) struct Queues(Mutex<HashMap<u64, OpenQueue>>);

/// A queue, which ends when this is dropped.
struct OpenQueue {
    store: Arc<EmbeddedStore>,
    start: ChangePosition,
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        self.store.end_versions(self.start);
    }
}

impl Queues {
    /// Ends all.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *lock(&self.0));
        drop(ended);
    }

    /// The oldest leased version of each queue, which gives the lease up. The caller drops the leases, without a lock.
    pub(super) fn give_up(&self) -> Vec<Lease> {
        lock(&self.0).values().filter_map(|queue| queue.store.give_up_version(queue.start)).collect()
    }
}

impl Session {
    /// Opens a queue of every version. The session's budget is charged for the versions that it leases.
    ///
    /// # Errors
    /// `Invalid` for limits out of their ranges, `Conflict` beyond the number of queues, `Unsupported` over HTTP.
    pub(crate) fn open_versions(&self, every: EveryVersion) -> Result<ChangePosition> {
        if self.transport() == Transport::Http {
            return Err(Error::unsupported("a queue of every version needs a session: connect to the Unix socket"));
        }
        let holder = self.holder(HOLDER)?;
        let mut queues = lock(&self.queues.0);
        if queues.len() >= QUEUES_MAX {
            let message = format!("{QUEUES_MAX} watches of every version are open in this session");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let start = self.store.open_versions(every, &holder, Some(Arc::clone(&self.budget)))?;
        queues.insert(start.log, OpenQueue { store: Arc::clone(&self.store), start });
        Ok(start)
    }

    /// The changes of one of the session's queues after `since`.
    pub(crate) fn await_versions(&self, since: ChangePosition) -> ChangesFuture {
        match lock(&self.queues.0).contains_key(&since.log) {
            true => self.store.await_versions(since),
            false => ChangesFuture::known(since, true),
        }
    }

    /// Ends one of the session's queues.
    pub(crate) fn end_versions(&self, log: u64) {
        let ended = lock(&self.queues.0).remove(&log);
        drop(ended);
    }
}
