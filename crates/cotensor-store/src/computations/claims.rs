//! Computing a thing once: who computes a key, who waits, and where the results are.

use crate::leases::Record;
use crate::{Holder, Key, Lease, TensorId};
use cotensor_core::sync;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

const SHARDS: usize = 16;

enum State {
    /// `holder` computes. The wakers are of the claims that wait without blocking.
    Computing {
        holder: Holder,
        wakers: Vec<Waker>,
    },
    Ready(Vec<Weak<Record>>),
}

type Map = HashMap<Key, State, foldhash::fast::RandomState>;
type Guard<'a> = MutexGuard<'a, Map>;

#[derive(Default)]
struct Shard {
    claims: Mutex<Map>,
    changed: Condvar,
}

impl Shard {
    /// Tells all who wait that a claim is no longer as it was `before`. Not under the lock: whoever wakes looks at once.
    fn wake(&self, before: Option<State>) {
        self.changed.notify_all();
        if let Some(State::Computing { wakers, .. }) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }
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
        sync::lock(&shard.claims)
    }

    /// Leases the results for `holder`, or makes the caller compute, or waits at most `wait` while another holder computes.
    pub(crate) fn claim(&self, key: Key, holder: &Holder, wait: Duration) -> Result<Found> {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let mut deadline = None;
        loop {
            match Self::look(claims, key, holder) {
                Ok(found) => return Ok(found),
                Err(computing) => claims = self.wait(shard, computing, (&mut deadline, wait), &key)?,
            }
        }
    }

    /// As [`claim`](Claims::claim), but where that waits, `waker` is woken when there is something new.
    pub(crate) fn poll(&self, key: Key, holder: &Holder, waker: &Waker) -> Poll<Found> {
        match Self::look(Self::lock(self.shard(&key)), key, holder) {
            Ok(found) => Poll::Ready(found),
            Err(mut claims) => {
                if let Some(State::Computing { wakers, .. }) = claims.get_mut(&key)
                    && !wakers.iter().any(|known| known.will_wake(waker))
                {
                    wakers.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }

    /// The results or the right to compute; the lock back while somebody else computes.
    fn look<'a>(mut claims: Guard<'a>, key: Key, holder: &Holder) -> Result<Found, Guard<'a>> {
        let mine = || State::Computing { holder: holder.clone(), wakers: Vec::new() };
        match claims.get(&key) {
            Some(State::Computing { .. }) => Err(claims),
            Some(State::Ready(records)) => match lease_all(records, holder.id) {
                Ok(leases) => Ok(Found::Ready(leases)),
                Err(partial) => {
                    // Evicted in part: made again as a whole.
                    claims.insert(key, mine());
                    // The last lease of a tensor comes back here to forget it: never under the lock.
                    drop(claims);
                    drop(partial);
                    Ok(Found::Mine)
                }
            },
            None => {
                claims.insert(key, mine());
                Ok(Found::Mine)
            }
        }
    }

    /// Waits until something in `shard` changes, or fails past the deadline, which the first wait sets.
    #[cfg(not(target_family = "wasm"))]
    fn wait<'a>(
        &self,
        shard: &'a Shard,
        claims: Guard<'a>,
        (deadline, wait): (&mut Option<std::time::Instant>, Duration),
        key: &Key,
    ) -> Result<Guard<'a>> {
        use std::time::Instant;
        /// A wait that no clock overflows on.
        const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
        let now = Instant::now();
        let wait = wait.min(self.wait_max).min(WAIT_MAX);
        let left = deadline.get_or_insert_with(|| now + wait).saturating_duration_since(now);
        if left.is_zero() {
            return Err(Self::late(&claims, key));
        }
        Ok(shard.changed.wait_timeout(claims, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// On one thread whoever computes is further up the stack, so waiting would never end.
    #[cfg(target_family = "wasm")]
    fn wait<'a>(
        &self,
        _: &'a Shard,
        _: Guard<'a>,
        _: (&mut Option<std::time::Instant>, Duration),
        key: &Key,
    ) -> Result<Guard<'a>> {
        Err(Error::new(ErrorKind::Conflict, format!("{:?} is being computed already", key.0)))
    }

    /// The error of a claim that has waited long enough. It names the holder that computes.
    pub(crate) fn timed_out(&self, key: &Key) -> Error {
        Self::late(&Self::lock(self.shard(key)), key)
    }

    fn late(claims: &Map, key: &Key) -> Error {
        let holder = match claims.get(key) {
            Some(State::Computing { holder, .. }) => holder.name(),
            _ => "another holder",
        };
        Error::new(ErrorKind::TimedOut, format!("{holder} is still computing {}", key.0.short()))
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
        let before = Self::lock(shard).insert(key, State::Ready(records));
        shard.wake(before);
    }

    /// Which tensors a claim's results are, while all of them live.
    pub(crate) fn results(&self, key: &Key) -> Option<Vec<TensorId>> {
        match Self::lock(self.shard(key)).get(key) {
            Some(State::Ready(records)) => records.iter().map(|record| Some(record.upgrade()?.id)).collect(),
            _ => None,
        }
    }

    /// As [`finish`](Self::finish), unless somebody computes, or has computed, anew.
    pub(crate) fn restore(&self, key: Key, records: Vec<Weak<Record>>) {
        Self::lock(self.shard(&key)).entry(key).or_insert(State::Ready(records));
    }

    pub(crate) fn abandon(&self, key: Key) {
        let shard = self.shard(&key);
        let mut claims = Self::lock(shard);
        let before = match claims.get(&key) {
            Some(State::Computing { .. }) => claims.remove(&key),
            _ => None,
        };
        drop(claims);
        shard.wake(before);
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
