//! Computing a thing once: who computes a key, who waits, and where the results are.

use crate::record::Record;
use crate::{Key, Lease};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

const SHARDS: usize = 16;

enum State {
    Computing,
    Ready(Vec<Weak<Record>>),
}

type Map = HashMap<Key, State, foldhash::fast::RandomState>;
type Guard<'a> = MutexGuard<'a, Map>;

#[derive(Default)]
struct Shard {
    claims: Mutex<Map>,
    changed: Condvar,
}

pub(crate) struct Claims {
    shards: [Shard; SHARDS],
    #[cfg_attr(target_family = "wasm", allow(dead_code, reason = "nothing waits there"))]
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

    fn lock(shard: &Shard) -> Guard<'_> {
        shard.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases the results for `holder`, or makes the caller compute, or waits for who computes.
    pub(crate) fn claim(&self, key: Key, holder: u32) -> Result<Found> {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let mut deadline = None;
        loop {
            match claims.get(&key) {
                Some(State::Ready(records)) => match lease_all(records, holder) {
                    Ok(leases) => return Ok(Found::Ready(leases)),
                    Err(partial) => {
                        // Evicted in part: made again as a whole.
                        claims.insert(key, State::Computing);
                        // The last lease of a tensor comes back here to forget it: never under the lock.
                        drop(claims);
                        drop(partial);
                        return Ok(Found::Mine);
                    }
                },
                None => {
                    claims.insert(key, State::Computing);
                    return Ok(Found::Mine);
                }
                Some(State::Computing) => claims = self.wait(shard, claims, &mut deadline, &key)?,
            }
        }
    }

    /// Waits until something in `shard` changes, or fails past the deadline, which the first wait sets.
    #[cfg(not(target_family = "wasm"))]
    fn wait<'a>(
        &self,
        shard: &'a Shard,
        claims: Guard<'a>,
        deadline: &mut Option<std::time::Instant>,
        key: &Key,
    ) -> Result<Guard<'a>> {
        use std::time::Instant;
        /// A wait that no clock overflows on.
        const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
        let now = Instant::now();
        let left = deadline.get_or_insert_with(|| now + self.wait_max.min(WAIT_MAX)).saturating_duration_since(now);
        if left.is_zero() {
            let waited = self.wait_max.as_secs();
            return Err(Error::new(ErrorKind::TimedOut, format!("another computes {:?} for over {waited} s", key.0)));
        }
        Ok(shard.changed.wait_timeout(claims, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// On one thread whoever computes is further up the stack, so waiting would never end.
    #[cfg(target_family = "wasm")]
    fn wait<'a>(&self, _: &'a Shard, _: Guard<'a>, _: &mut Option<std::time::Instant>, key: &Key) -> Result<Guard<'a>> {
        Err(Error::new(ErrorKind::Conflict, format!("{:?} is being computed already", key.0)))
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

    /// Forgets the results that `record` was part of, unless they were made again since, or are being made.
    pub(crate) fn forget(&self, key: &Key, record: &Record) {
        let mut claims = Self::lock(self.shard(key));
        if let Some(State::Ready(records)) = claims.get(key)
            && records.iter().any(|result| std::ptr::eq(result.as_ptr(), record))
        {
            claims.remove(key);
        }
    }
}

/// All results leased, or those that could be before one that could not.
fn lease_all(records: &[Weak<Record>], holder: u32) -> Result<Vec<Lease>, Vec<Lease>> {
    let mut leases = Vec::with_capacity(records.len());
    for record in records {
        match record.upgrade().and_then(|record| Lease::find(&record, holder)) {
            Some(lease) => leases.push(lease),
            None => return Err(leases),
        }
    }
    Ok(leases)
}
