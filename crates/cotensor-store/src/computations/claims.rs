//! The table of computations: the holder that computes a key, the waiting callers, and the results.

use crate::leases::Record;
use crate::{Holder, Key, Lease, TensorId};
use cotensor_core::sync;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

const SHARDS: usize = 16;

enum Computation {
    /// `holder` computes. The wakers belong to claims that wait without blocking, by the numbers of the waiters.
    Computing {
        holder: Holder,
        wakers: BTreeMap<u64, Waker>,
    },
    Ready(Vec<Weak<Record>>),
}

type Map = HashMap<Key, Computation, foldhash::fast::RandomState>;
type Guard<'a> = MutexGuard<'a, Map>;

#[derive(Default)]
struct Shard {
    claims: Mutex<Map>,
    changed: Condvar,
}

impl Shard {
    /// Wakes the claims that wait for a change of `before`. Called without the lock, which they take at once.
    fn wake(&self, before: Option<Computation>) {
        self.changed.notify_all();
        if let Some(Computation::Computing { wakers, .. }) = before {
            wakers.into_values().for_each(Waker::wake);
        }
    }
}

pub(crate) struct Claims {
    shards: [Shard; SHARDS],
    #[cfg_attr(target_family = "wasm", allow(dead_code, reason = "claims do not wait there"))]
    wait_max: Duration,
    /// The number of the next waiter.
    pub(super) next_waiter: AtomicU64,
}

/// The outcome of a claim.
pub(crate) enum Found {
    Ready(Vec<Lease>),
    /// The caller computes.
    Compute,
}

impl Claims {
    pub(crate) fn new(wait_max: Duration) -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), wait_max, next_waiter: AtomicU64::default() }
    }

    fn shard(&self, key: &Key) -> &Shard {
        &self.shards[usize::from(key.0.as_bytes()[0]) % SHARDS]
    }

    fn lock(shard: &Shard) -> Guard<'_> {
        sync::lock(&shard.claims)
    }

    /// Leases the results for `holder`, or lets the caller compute. While another holder computes, waits at most
    /// `wait`.
    pub(crate) fn claim(&self, key: Key, holder: &Holder, wait: Duration) -> Result<Found> {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let mut deadline = None;
        loop {
            match Self::try_claim(claims, key, holder) {
                Ok(found) => return Ok(found),
                Err(computing) => claims = self.wait(shard, computing, &key, wait, &mut deadline)?,
            }
        }
    }

    /// As [`claim`](Claims::claim), without blocking: where that waits, `waker` is woken after a change, unless the wait
    /// [ends](Claims::end_wait) before.
    pub(super) fn poll(&self, key: Key, holder: &Holder, waiter: u64, waker: &Waker) -> Poll<Found> {
        match Self::try_claim(Self::lock(self.shard(&key)), key, holder) {
            Ok(found) => Poll::Ready(found),
            Err(mut claims) => {
                if let Some(Computation::Computing { wakers, .. }) = claims.get_mut(&key) {
                    wakers.insert(waiter, waker.clone());
                }
                Poll::Pending
            }
        }
    }

    /// Ends a waiter's wait for `key`.
    pub(super) fn end_wait(&self, key: &Key, waiter: u64) {
        if let Some(Computation::Computing { wakers, .. }) = Self::lock(self.shard(key)).get_mut(key) {
            wakers.remove(&waiter);
        }
    }

    /// The number of waiters for `key`.
    #[cfg(test)]
    pub(crate) fn count_waiters(&self, key: &Key) -> usize {
        match Self::lock(self.shard(key)).get(key) {
            Some(Computation::Computing { wakers, .. }) => wakers.len(),
            _ => 0,
        }
    }

    /// The results, or the right to compute; while another holder computes, the lock.
    fn try_claim<'a>(mut claims: Guard<'a>, key: Key, holder: &Holder) -> Result<Found, Guard<'a>> {
        let computing = || Computation::Computing { holder: holder.clone(), wakers: BTreeMap::new() };
        match claims.get(&key) {
            Some(Computation::Computing { .. }) => Err(claims),
            Some(Computation::Ready(records)) => match lease_all(records, holder) {
                Ok(leases) => Ok(Found::Ready(leases)),
                Err(partial) => {
                    // Some results were evicted: all are computed again.
                    claims.insert(key, computing());
                    // Dropping the last lease of a tensor calls `forget`, which takes the lock.
                    drop(claims);
                    drop(partial);
                    Ok(Found::Compute)
                }
            },
            None => {
                claims.insert(key, computing());
                Ok(Found::Compute)
            }
        }
    }

    /// Waits for a change in `shard`. Fails past `deadline`, which the first wait sets to the end of `wait`.
    #[cfg(not(target_family = "wasm"))]
    fn wait<'a>(
        &self,
        shard: &'a Shard,
        claims: Guard<'a>,
        key: &Key,
        wait: Duration,
        deadline: &mut Option<std::time::Instant>,
    ) -> Result<Guard<'a>> {
        use std::time::Instant;
        /// The longest wait that no clock overflows on.
        const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
        let now = Instant::now();
        let wait = wait.min(self.wait_max).min(WAIT_MAX);
        let left = deadline.get_or_insert_with(|| now + wait).saturating_duration_since(now);
        if left.is_zero() {
            return Err(Self::late(&claims, key));
        }
        Ok(sync::wait_timeout(&shard.changed, claims, left).0)
    }

    /// With one thread, the caller that computes is further up the stack, so a wait would never end.
    #[cfg(target_family = "wasm")]
    fn wait<'a>(
        &self,
        _: &'a Shard,
        _: Guard<'a>,
        key: &Key,
        _: Duration,
        _: &mut Option<std::time::Instant>,
    ) -> Result<Guard<'a>> {
        Err(Error::new(
            ErrorKind::Conflict,
            format!("{:?} is being computed by a caller of this one; wasm32 has one thread", key.0),
        ))
    }

    /// The holder that computes a key; none for a key that is not being computed.
    pub(crate) fn holder(&self, key: &Key) -> Option<Holder> {
        match Self::lock(self.shard(key)).get(key) {
            Some(Computation::Computing { holder, .. }) => Some(holder.clone()),
            _ => None,
        }
    }

    /// The error of a claim that waited too long. It names the holder that computes.
    pub(crate) fn timed_out(&self, key: &Key) -> Error {
        Self::late(&Self::lock(self.shard(key)), key)
    }

    fn late(claims: &Map, key: &Key) -> Error {
        let holder = match claims.get(key) {
            Some(Computation::Computing { holder, .. }) => holder.name(),
            _ => "another holder",
        };
        Error::new(ErrorKind::TimedOut, format!("{holder} is still computing {}", key.0.short()))
    }

    /// Whether the results could be leased now.
    pub(crate) fn is_ready(&self, key: &Key) -> bool {
        match Self::lock(self.shard(key)).get(key) {
            Some(Computation::Ready(records)) => records.iter().all(|record| record.strong_count() > 0),
            _ => false,
        }
    }

    pub(crate) fn finish(&self, key: Key, records: Vec<Weak<Record>>) {
        let shard = self.shard(&key);
        let before = Self::lock(shard).insert(key, Computation::Ready(records));
        shard.wake(before);
    }

    /// The ids of the results of a computation, while all of them exist.
    pub(crate) fn results(&self, key: &Key) -> Option<Vec<TensorId>> {
        match Self::lock(self.shard(key)).get(key) {
            Some(Computation::Ready(records)) => records.iter().map(|record| Some(record.upgrade()?.id)).collect(),
            _ => None,
        }
    }

    /// As [`finish`](Self::finish), unless the key has an entry already.
    pub(crate) fn restore(&self, key: Key, records: Vec<Weak<Record>>) {
        Self::lock(self.shard(&key)).entry(key).or_insert(Computation::Ready(records));
    }

    pub(crate) fn abandon(&self, key: Key) {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let before = match claims.get(&key) {
            Some(Computation::Computing { .. }) => claims.remove(&key),
            _ => None,
        };
        drop(claims);
        shard.wake(before);
    }

    /// Removes the results that `record` is one of, unless they were computed again or are being computed.
    pub(crate) fn forget(&self, key: &Key, record: &Record) {
        let mut claims = Self::lock(self.shard(key));
        if let Some(Computation::Ready(records)) = claims.get(key)
            && records.iter().any(|result| std::ptr::eq(result.as_ptr(), record))
        {
            claims.remove(key);
        }
    }
}

/// Leases of all results, or else the leases taken before the first result that could not be leased.
fn lease_all(records: &[Weak<Record>], holder: &Holder) -> Result<Vec<Lease>, Vec<Lease>> {
    let mut leases = Vec::with_capacity(records.len());
    for record in records {
        match record.upgrade().and_then(|record| record.lease_on_lookup(holder)) {
            Some(lease) => leases.push(lease),
            None => return Err(leases),
        }
    }
    Ok(leases)
}
