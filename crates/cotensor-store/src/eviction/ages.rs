//! The times of tensors that stay for a time after their last lease.

use crate::leases::Record;
use crate::{TensorId, TensorSpec};
use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When tensors without leases are freed. A tensor that has leases again may be listed: it is looked at when its time has passed, and its
/// last lease counts anew.
#[derive(Default)]
pub(crate) struct Ages {
    due: Mutex<BTreeMap<TensorId, Due>>,
    /// The number of tensors in `due`.
    count: AtomicU64,
    /// Since when restored tensors had no lease in the store before.
    restored: Mutex<BTreeMap<TensorId, Duration>>,
}

pub(crate) struct Due {
    at: Duration,
    /// The name, for a tensor that was spilled meanwhile.
    pub(crate) name: Box<str>,
}

impl Ages {
    fn set(&self, id: TensorId, at: Duration, name: &str) {
        let mut due = lock(&self.due);
        due.insert(id, Due { at, name: name.into() });
        self.count.store(due.len() as u64, Ordering::Relaxed);
    }

    /// Removes the tensors that are due, and returns them with the time of the next one.
    pub(crate) fn take(&self, now: Duration) -> (Vec<(TensorId, Due)>, Option<Duration>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return (Vec::new(), None);
        }
        let mut due = lock(&self.due);
        let taken = due.extract_if(.., |_, due| due.at <= now).collect();
        self.count.store(due.len() as u64, Ordering::Relaxed);
        (taken, due.values().map(|due| due.at).min())
    }

    /// When a tensor is freed, unless it has leases by then.
    pub(crate) fn due(&self, id: TensorId) -> Option<Duration> {
        lock(&self.due).get(&id).map(|due| due.at)
    }

    /// The time of a tensor begins: its last lease has ended. That of a restored tensor goes on, if no caller has used it since. Returns since
    /// when the tensor has no lease; `None` for a tensor without a time.
    pub(crate) fn count(&self, record: &Record, now: Duration) -> Option<Duration> {
        let time = record.keep_for()?;
        let restored = lock(&self.restored).remove(&record.id());
        let since = restored.filter(|_| record.last_used() == record.created()).unwrap_or(now);
        self.set(record.id(), since.saturating_add(time), record.name());
        Some(since)
    }

    /// A tensor that is being restored had no lease since `since`, by a clock that both stores share.
    pub(crate) fn restore(&self, id: TensorId, since: Option<Duration>, now: Duration) {
        if let Some(since) = since {
            lock(&self.restored).insert(id, since.min(now));
        }
    }

    /// A spilled tensor comes back: its time goes on, unless it is used.
    pub(crate) fn resume(&self, id: TensorId, spec: &TensorSpec, now: Duration) {
        if let (Some(at), Some(time)) = (self.due(id), spec.keep_for) {
            self.restore(id, Some(at.saturating_sub(time)), now);
        }
    }

    /// The time of a spilled tensor of a former store goes on, or begins again.
    pub(crate) fn count_spilled(&self, id: TensorId, spec: &TensorSpec, now: Duration) {
        if let Some(time) = spec.keep_for {
            let since = lock(&self.restored).remove(&id).unwrap_or(now);
            self.set(id, since.saturating_add(time), &spec.name);
        }
    }
}
