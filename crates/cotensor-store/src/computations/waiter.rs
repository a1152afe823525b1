//! Waiting for claims without blocking.

use super::{Claims, Found};
use crate::{Holder, Key};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

/// A caller that waits for claims without blocking. Dropping it removes its wakers from the table of computations.
pub(crate) struct Waiter<'a> {
    claims: &'a Claims,
    number: u64,
    /// The computations that it waits for.
    keys: HashSet<Key, foldhash::fast::RandomState>,
}

impl Claims {
    /// A new waiter.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter { claims: self, number: self.next_waiter.fetch_add(1, Ordering::Relaxed), keys: HashSet::default() }
    }
}

impl Waiter<'_> {
    /// As [`claim`](Claims::claim), without blocking: where that waits, `waker` is woken after a change.
    pub(crate) fn poll(&mut self, key: Key, holder: &Holder, waker: &Waker) -> Poll<Found> {
        let found = self.claims.poll(key, holder, self.number, waker);
        if found.is_pending() {
            self.keys.insert(key);
        } else {
            self.keys.remove(&key);
        }
        found
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.claims.end_wait(key, self.number));
    }
}
