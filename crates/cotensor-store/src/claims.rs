//! Computing a thing once: who computes a key, who waits, and where the results are.

use crate::record::Record;
use crate::{Key, Lease};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;

enum State {
    Computing,
    Ready(Vec<Weak<Record>>),
}

#[derive(Default)]
struct Shard {
    claims: Mutex<HashMap<Key, State, foldhash::fast::RandomState>>,
    changed: Condvar,
}

pub(crate) struct Claims {
    shards: [Shard; SHARDS],
    wait_max: Duration,
}

/// What a claim found.
pub(crate) enum Found {
    Ready(Vec<Lease>),
    /// The caller computes now.
    Mine,
}

impl Claims {
    pub(crate) fn new(wait_max: Duration) -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), wait_max }
    }

    fn shard(&self, key: &Key) -> &Shard {
        &self.shards[usize::from(key.0.as_bytes()[0]) % SHARDS]
    }

    fn lock<'a>(shard: &'a Shard) -> MutexGuard<'a, HashMap<Key, State, foldhash::fast::RandomState>> {
        shard.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases the results for `holder`, or makes the caller compute, or waits for who computes.
    pub(crate) fn claim(&self, key: Key, holder: u32) -> Result<Found> {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let mut deadline = None;
        loop {
            match claims.get(&key) {
                Some(State::Ready(records)) => {
                    if let Some(leases) = lease_all(records, holder) {
                        return Ok(Found::Ready(leases));
                    }
                    // Evicted in part: made again as a whole.
                    claims.insert(key, State::Computing);
                    return Ok(Found::Mine);
                }
                None => {
                    claims.insert(key, State::Computing);
                    return Ok(Found::Mine);
                }
                Some(State::Computing) => {
                    let left = match deadline {
                        None => self.wait_max,
                        Some(deadline) => Instant::saturating_duration_since(&deadline, Instant::now()),
                    };
                    if left.is_zero() {
                        let waited = self.wait_max.as_secs();
                        return Err(Error::new(
                            ErrorKind::TimedOut,
                            format!("another computes {:?} for over {waited} s", key.0),
                        ));
                    }
                    // Read only when there is something to wait for: wasm32 has no clock.
                    deadline.get_or_insert_with(|| Instant::now() + self.wait_max);
                    claims = shard.changed.wait_timeout(claims, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Whether the results could be leased now.
    pub(crate) fn is_ready(&self, key: &Key) -> bool {
        match Self::lock(self.shard(key)).get(key) {
            Some(State::Ready(records)) => records.iter().all(|record| record.strong_count() > 0),
            _ => false,
        }
    }

    pub(crate) fn finish(&self, key: Key, records: Vec<Weak<Record>>) {
        let shard = self.shard(&key);
        Self::lock(shard).insert(key, State::Ready(records));
        shard.changed.notify_all();
    }

    pub(crate) fn abandon(&self, key: Key) {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        if matches!(claims.get(&key), Some(State::Computing)) {
            claims.remove(&key);
        }
        drop(claims);
        shard.changed.notify_all();
    }

    /// Forgets results that are gone, unless somebody makes them again already.
    pub(crate) fn forget(&self, key: &Key) {
        let mut claims = Self::lock(self.shard(key));
        if matches!(claims.get(key), Some(State::Ready(_))) {
            claims.remove(key);
        }
    }
}

fn lease_all(records: &[Weak<Record>], holder: u32) -> Option<Vec<Lease>> {
    records.iter().map(|record| record.upgrade().and_then(|record: Arc<Record>| Lease::take(record, holder))).collect()
}
