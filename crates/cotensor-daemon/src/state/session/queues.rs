//! The queues of every version that a session reads.

use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::backend::Budget;
use cotensor_store::{ChangePosition, ChangesFuture, EveryVersion, Holder, Lease, LocalStore, NameStore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most queues of one session.
const QUEUES_MAX: usize = 64;

/// The queues of a session by their numbers. Its lock is taken while that of the session's resources is held, never the reverse.
#[derive(Default)]
pub(super) struct Queues(Mutex<HashMap<u64, OpenQueue>>);

/// A queue, which ends when this is dropped.
struct OpenQueue {
    store: Arc<LocalStore>,
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

    /// Opens a queue of every version. The store leases the versions for `holder` and charges them to `budget`.
    ///
    /// # Errors
    /// `Invalid` for limits out of their ranges, `Conflict` beyond the number of queues.
    pub(super) fn open(
        &self,
        store: &Arc<LocalStore>,
        every: EveryVersion,
        holder: &Holder,
        budget: &Arc<Budget>,
    ) -> Result<ChangePosition> {
        let mut queues = lock(&self.0);
        if queues.len() >= QUEUES_MAX {
            let message = format!("{QUEUES_MAX} watches of every version are open in this session");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let start = store.open_versions(every, holder, Some(Arc::clone(budget)))?;
        queues.insert(start.log, OpenQueue { store: Arc::clone(store), start });
        Ok(start)
    }

    /// The changes of a queue after `since`.
    pub(super) fn changes(&self, since: ChangePosition) -> ChangesFuture {
        match lock(&self.0).get(&since.log) {
            Some(queue) => queue.store.await_versions(since),
            None => ChangesFuture::known(since, true),
        }
    }

    /// Ends one queue.
    pub(super) fn end_one(&self, log: u64) {
        let ended = lock(&self.0).remove(&log);
        drop(ended);
    }
}
