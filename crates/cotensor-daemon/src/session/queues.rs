//! The queues of every version that a session reads.

use super::resources::OpenQueue;
use super::session::Session;
use cotensor_client::protocol::Transport;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::{ChangePosition, ChangesFuture, EveryVersion};
use std::sync::Arc;

/// The most queues of one session.
const QUEUES_MAX: usize = 64;
/// The client's holder of the versions that its queues lease.
const HOLDER: &str = "watch";

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
        if self.lock().queues.len() >= QUEUES_MAX {
            let message = format!("{QUEUES_MAX} watches of every version are open in this session");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let start = self.store.open_versions(every, &holder, Some(Arc::clone(&self.budget)))?;
        let queue = OpenQueue { store: Arc::clone(&self.store), start };
        let replaced = self.lock().queues.insert(start.log, queue);
        drop(replaced);
        Ok(start)
    }

    /// The changes of one of the session's queues after `since`.
    pub(crate) fn await_versions(&self, since: ChangePosition) -> ChangesFuture {
        match self.lock().queues.contains_key(&since.log) {
            true => self.store.await_versions(since),
            false => ChangesFuture::known(since, true),
        }
    }

    /// Ends one of the session's queues.
    pub(crate) fn end_versions(&self, log: u64) {
        let ended = self.lock().queues.remove(&log);
        drop(ended);
    }
}
