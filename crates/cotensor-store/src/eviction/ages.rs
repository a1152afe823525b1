//! The times of tensors that stay for a time after their last lease.

use crate::TensorId;
use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When tensors without leases are freed. A tensor that has leases again may be listed: it is looked at when its time has passed, and its
/// last lease counts anew.
#[derive(Default)]
pub(crate) struct Ages {
    pub(super) due: Mutex<BTreeMap<TensorId, Due>>,
    /// The number of tensors in `due`.
    count: AtomicU64,
    /// Since when restored tensors had no lease in the store before.
    pub(super) restored: Mutex<BTreeMap<TensorId, Duration>>,
}

pub(super) struct Due {
    pub(super) at: Duration,
    /// The name, for a tensor that was spilled meanwhile.
    pub(super) name: Box<str>,
}

impl Ages {
    pub(super) fn set(&self, id: TensorId, at: Duration, name: &str) {
        let mut due = lock(&self.due);
        due.insert(id, Due { at, name: name.into() });
        self.count.store(due.len() as u64, Ordering::Relaxed);
    }

    /// Removes the tensors that are due, and returns them with the time of the next one.
    pub(super) fn take(&self, now: Duration) -> (Vec<(TensorId, Due)>, Option<Duration>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return (Vec::new(), None);
        }
        let mut due = lock(&self.due);
        let taken = due.extract_if(.., |_, due| due.at <= now).collect();
        self.count.store(due.len() as u64, Ordering::Relaxed);
        (taken, due.values().map(|due| due.at).min())
    }
}
