//! The times of tensors that stay for a time after their last lease.

use crate::leases::Record;
use crate::{SpilledTensor, TensorId};
use cotensor_core::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When tensors without leases are freed. A tensor that has leases again may be listed: it is looked at when its time has passed, and its
/// last lease counts anew. A tensor that leaves the store is [forgotten](Ages::forget).
pub(crate) struct Ages {
    state: Mutex<State>,
    /// No tensor is due before this time, in nanoseconds. Publishing takes no lock until then.
    next_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    due: BTreeMap<TensorId, Due>,
    /// The same tensors in the order of their times.
    order: BTreeSet<(Duration, TensorId)>,
    /// Since when restored tensors had no lease in the store before.
    restored: BTreeMap<TensorId, Duration>,
}

pub(crate) struct Due {
    at: Duration,
    /// The name, for a tensor that was spilled meanwhile.
    pub(crate) name: Box<str>,
}

impl Default for Ages {
    fn default() -> Self {
        Self { state: Mutex::default(), next_ns: AtomicU64::new(u64::MAX) }
    }
}

impl State {
    fn insert(&mut self, id: TensorId, due: Due) {
        self.remove(id);
        self.order.insert((due.at, id));
        self.due.insert(id, due);
    }

    fn remove(&mut self, id: TensorId) {
        if let Some(due) = self.due.remove(&id) {
            self.order.remove(&(due.at, id));
        }
    }
}

impl Ages {
    /// Calls `change` with the lock.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let changed = change(&mut state);
        let ns = |&(at, _): &(Duration, TensorId)| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.next_ns.store(state.order.first().map_or(u64::MAX, ns), Ordering::Relaxed);
        changed
    }

    /// The time at which the next tensor is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        Some(self.next_ns.load(Ordering::Relaxed)).filter(|&ns| ns < u64::MAX).map(Duration::from_nanos)
    }

    /// Removes the tensors that are due, and returns them.
    pub(crate) fn take(&self, now: Duration) -> Vec<(TensorId, Due)> {
        if self.next().is_none_or(|next| now < next) {
            return Vec::new();
        }
        self.change(|state| {
            let mut taken = Vec::new();
            while let Some(&(at, id)) = state.order.first()
                && at <= now
            {
                state.order.pop_first();
                taken.extend(state.due.remove(&id).map(|due| (id, due)));
            }
            taken
        })
    }

    /// Puts back a tensor of [`take`](Self::take), unless its last lease has ended since.
    pub(crate) fn put_back(&self, id: TensorId, due: Due) {
        self.change(|state| {
            if !state.due.contains_key(&id) {
                state.insert(id, due);
            }
        });
    }

    /// A tensor has left the store.
    pub(crate) fn forget(&self, id: TensorId) {
        self.change(|state| {
            state.remove(id);
            state.restored.remove(&id);
        });
    }

    /// When a tensor is freed, unless it has leases by then.
    pub(crate) fn due(&self, id: TensorId) -> Option<Duration> {
        lock(&self.state).due.get(&id).map(|due| due.at)
    }

    /// The time of a tensor begins: its last lease has ended. That of a restored tensor goes on, if no caller has used it since. Returns since
    /// when the tensor has no lease; `None` for a tensor without a time.
    pub(crate) fn count(&self, record: &Record, now: Duration) -> Option<Duration> {
        let time = record.keep_for()?;
        self.change(|state| {
            let restored = state.restored.remove(&record.id());
            let since = restored.filter(|_| record.last_used() == record.created()).unwrap_or(now);
            state.insert(record.id(), Due { at: since.saturating_add(time), name: record.name().into() });
            Some(since)
        })
    }

    /// A tensor that was restored, and is leased, had no lease since `since`, by a clock that both stores share.
    pub(crate) fn restore(&self, id: TensorId, since: Duration, now: Duration) {
        lock(&self.state).restored.insert(id, since.min(now));
    }

    /// A spilled tensor has come back, and is leased: its time goes on, unless it is used.
    pub(crate) fn resume(&self, record: &Record, now: Duration) {
        if let (Some(at), Some(time)) = (self.due(record.id()), record.keep_for()) {
            self.restore(record.id(), at.saturating_sub(time), now);
        }
    }

    /// The time of a spilled tensor of a former store goes on, if it is known since when it had no lease, or begins again.
    pub(crate) fn count_spilled(&self, tensor: &SpilledTensor, now: Duration) {
        if let Some(time) = tensor.spec.keep_for {
            let since = tensor.left.map_or(now, |left| left.min(now));
            let due = Due { at: since.saturating_add(time), name: tensor.spec.name.as_str().into() };
            self.change(|state| state.insert(tensor.id, due));
        }
    }

    /// The number of tensors that it knows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let state = lock(&self.state);
        assert_eq!(state.due.len(), state.order.len());
        state.due.len() + state.restored.len()
    }
}
