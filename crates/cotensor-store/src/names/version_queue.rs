//! Queues of every version of some names, for readers that must see each version. A queue leases the versions that its reader has not read.

use crate::backend::{Budget, Charge};
use crate::leases::Record;
use crate::names::Names;
use crate::{ChangePosition, EveryVersion, Holder, Lease, NameChange, NameChanges, TensorId};
use cotensor_core::sync::{lock, read, write};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::Waker;
use std::time::Duration;

/// The most changes of one answer. The reader has them all before it asks for more.
const ANSWER_MAX: usize = 64;
/// The most bytes of names in a queue.
const NAME_BYTES_MAX: usize = 1 << 20;

/// The queues of one store.
#[derive(Default)]
pub(crate) struct VersionQueues {
    /// Whether a queue was opened at some time. Publishing takes no lock before.
    used: AtomicBool,
    queues: RwLock<HashMap<u64, Arc<VersionQueue>, foldhash::fast::RandomState>>,
}

/// The versions for one reader.
pub(crate) struct VersionQueue {
    /// Differs between the queues of all stores.
    id: u64,
    every: EveryVersion,
    holder: Holder,
    /// The reader's part of the budget, which its queued versions are charged to.
    own: Option<Arc<Budget>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the order of their numbers.
    entries: VecDeque<Queued>,
    /// The number of the latest change.
    latest: u64,
    /// The reader has received the changes up to this number. They are not dropped: the reader counts those that it does not find.
    delivered: u64,
    /// The number of changes that the reader never receives.
    dropped: u64,
    /// Bytes of the leased versions.
    bytes: u64,
    /// Bytes of the names.
    name_bytes: usize,
    /// The reader's waits: usually one, and more while calls end that it does not wait for any more.
    waiters: HashMap<u64, Waker, foldhash::fast::RandomState>,
    next_waiter: u64,
    ended: bool,
}

/// A change that the reader has not acknowledged.
struct Queued {
    number: u64,
    change: NameChange,
    /// The version's lease. None for a removal, and for a version that the queue has no room for.
    pin: Option<Pin>,
}

struct Pin {
    lease: Lease,
    _charge: Option<Arc<Charge>>,
}

/// Leases to drop after the name is unlocked.
#[must_use]
#[derive(Default)]
pub(crate) struct Unqueued(#[allow(dead_code, reason = "dropped later")] Vec<Lease>);

/// What a poll of a queue gives.
pub(crate) enum Polled {
    Changes(NameChanges),
    Nothing,
    Ended,
}

impl VersionQueues {
    /// Opens a queue whose leases are those of `holder` and charged to `own`, at the time `now`. Returns the position before its first change.
    pub(crate) fn open(
        &self,
        every: EveryVersion,
        holder: Holder,
        own: Option<Arc<Budget>>,
        names: &Names,
        now: Duration,
    ) -> ChangePosition {
        let id = foldhash::fast::RandomState::default().hash_one(1);
        let queue = Arc::new(VersionQueue { id, every, holder, own, state: Mutex::default() });
        self.used.store(true, Ordering::SeqCst);
        write(&self.queues).insert(id, Arc::clone(&queue));
        if queue.every.existing {
            // A queue drops what it has no room for.
            let mut unqueued = Unqueued::default();
            names.each_newest(&queue.every.filter, |name, id, record| {
                record.into_iter().for_each(|record| record.set_last_used(now));
                queue.add_existing(name, id, record, &mut unqueued);
            });
        }
        queue.start()
    }

    pub(crate) fn find(&self, id: u64) -> Option<Arc<VersionQueue>> {
        read(&self.queues).get(&id).cloned()
    }

    /// Ends a queue and releases its leases.
    pub(crate) fn end(&self, id: u64) {
        let Some(queue) = write(&self.queues).remove(&id) else { return };
        let mut state = lock(&queue.state);
        state.ended = true;
        let (waiters, entries) = (std::mem::take(&mut state.waiters), std::mem::take(&mut state.entries));
        drop(state);
        waiters.into_values().for_each(Waker::wake);
        drop(entries);
    }

    /// Adds a version, or without `record` a removal, to the queues of `name`. Called while the name is locked.
    pub(crate) fn add(&self, name: &str, record: Option<&Arc<Record>>) -> Unqueued {
        let mut unqueued = Unqueued::default();
        if self.used.load(Ordering::SeqCst) {
            let queues = read(&self.queues);
            let selecting = queues.values().filter(|queue| queue.every.filter.selects(name));
            selecting.for_each(|queue| queue.add(name, record.map(|record| record.id), record, &mut unqueued));
        }
        unqueued
    }

    /// Gives the older half of the leases of every queue up, because memory is needed. The changes stay in the queues. False when there
    /// was not a lease.
    pub(crate) fn give_up(&self) -> bool {
        let queues: Vec<_> = read(&self.queues).values().cloned().collect();
        let mut given = Unqueued::default();
        queues.iter().for_each(|queue| given.0.extend(queue.give_up(|pinned| pinned.div_ceil(2))));
        !given.0.is_empty()
    }

    /// Gives the oldest lease of one queue up.
    pub(crate) fn give_up_oldest(&self, id: u64) -> Option<Lease> {
        self.find(id)?.give_up(|pinned| pinned.min(1)).pop()
    }
}

impl VersionQueue {
    /// The position before the first change.
    pub(crate) fn start(&self) -> ChangePosition {
        ChangePosition { log: self.id, number: 0 }
    }

    /// Adds the newest version of a name at the time of opening, unless the version was published meanwhile and is queued.
    fn add_existing(&self, name: &str, id: TensorId, record: Option<&Arc<Record>>, unqueued: &mut Unqueued) {
        let is_queued = lock(&self.state).entries.iter().rev().any(|queued| queued.change.id == Some(id));
        if !is_queued {
            self.add(name, Some(id), record, unqueued);
        }
    }

    fn add(&self, name: &str, id: Option<TensorId>, record: Option<&Arc<Record>>, unqueued: &mut Unqueued) {
        let mut state = lock(&self.state);
        state.latest += 1;
        state.name_bytes += name.len();
        let (number, change) = (state.latest, NameChange { name: name.to_owned(), id });
        state.entries.push_back(Queued { number, change, pin: None });
        while state.entries.len() > self.every.versions_max || state.name_bytes > NAME_BYTES_MAX {
            if !state.drop_oldest(unqueued) {
                break;
            }
        }
        let mut pin = record.and_then(|record| self.pin(&mut state, record, unqueued));
        state.entries.back_mut().into_iter().for_each(|queued| queued.pin = pin.take());
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_values().for_each(Waker::wake);
    }

    /// Leases a version for the reader. Older ones are dropped for it.
    fn pin(&self, state: &mut State, record: &Arc<Record>, unqueued: &mut Unqueued) -> Option<Pin> {
        let bytes = record.layout.size_bytes() as u64;
        if bytes > self.every.bytes_max {
            return None;
        }
        loop {
            if state.bytes + bytes <= self.every.bytes_max {
                let charge = self.own.as_ref().map(|own| own.take(bytes));
                if charge.as_ref().is_none_or(Option::is_some) {
                    let lease = record.lease(&self.holder)?;
                    state.bytes += bytes;
                    return Some(Pin { lease, _charge: charge.flatten() });
                }
            }
            if !state.drop_oldest(unqueued) {
                return None;
            }
        }
    }

    /// Takes the oldest leases, as many of them as `count` says. The caller drops them, without a lock.
    fn give_up(&self, count: impl FnOnce(usize) -> usize) -> Vec<Lease> {
        let mut state = lock(&self.state);
        let count = count(state.entries.iter().filter(|queued| queued.pin.is_some()).count());
        let State { entries, bytes, .. } = &mut *state;
        let pinned = entries.iter_mut().filter(|queued| queued.pin.is_some()).take(count);
        pinned.filter_map(|queued| queued.pin.take()).map(|pin| unpin(pin, bytes)).collect()
    }

    /// The changes after `since`. Releases those up to `since`, which the reader has read.
    /// `waiter` is the number of this wait from its first poll on.
    pub(crate) fn poll(&self, since: u64, waiter: &mut Option<u64>, waker: &Waker) -> Polled {
        let mut released = Unqueued::default();
        let mut state = lock(&self.state);
        while state.entries.front().is_some_and(|queued| queued.number <= since) {
            state.remove(0, &mut released);
        }
        if state.ended {
            return Polled::Ended;
        }
        // At most half of a queue, so that the reader's part of it never keeps the newest version out.
        let most = ANSWER_MAX.min(self.every.versions_max / 2).max(1);
        let changes: Vec<_> = state.entries.iter().take(most).map(|queued| queued.change.clone()).collect();
        let Some(last) = state.entries.get(changes.len().wrapping_sub(1)).map(|queued| queued.number) else {
            let number = *waiter.get_or_insert_with(|| {
                state.next_waiter += 1;
                state.next_waiter
            });
            state.waiters.insert(number, waker.clone());
            return Polled::Nothing;
        };
        state.delivered = state.delivered.max(last);
        let position = ChangePosition { log: self.id, number: last };
        let dropped = state.dropped;
        drop(state);
        Polled::Changes(NameChanges { position, changes, incomplete: false, dropped })
    }

    /// Ends a wait.
    pub(crate) fn end_wait(&self, waiter: u64) {
        lock(&self.state).waiters.remove(&waiter);
    }
}

impl State {
    /// Drops the oldest change that the reader has not received, but never the newest change. False when there is none.
    fn drop_oldest(&mut self, unqueued: &mut Unqueued) -> bool {
        let oldest = self.entries.partition_point(|queued| queued.number <= self.delivered);
        let drops = oldest + 1 < self.entries.len();
        if drops {
            self.remove(oldest, unqueued);
            self.dropped += 1;
        }
        drops
    }

    fn remove(&mut self, index: usize, unqueued: &mut Unqueued) {
        let Some(queued) = self.entries.remove(index) else { return };
        self.name_bytes -= queued.change.name.len();
        unqueued.0.extend(queued.pin.map(|pin| unpin(pin, &mut self.bytes)));
    }
}

/// Returns a version's bytes to the reader. The caller drops the lease, without a lock.
fn unpin(pin: Pin, bytes: &mut u64) -> Lease {
    *bytes -= pin.lease.record.layout.size_bytes() as u64;
    pin.lease
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;
    use crate::{LocalStore, NameFilter, NameStore, Retention, TensorSpec, TensorStore};
    use cotensor_core::DType;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A call that its client has abandoned ends by its timeout, which polls it once more.
    #[test]
    fn ending_wait_leaves_the_wakers_of_others() {
        let store = LocalStore::builder().build();
        let holder = store.holder("h");
        let every = EveryVersion::new(NameFilter::Name("x".to_owned()));
        let start = store.open_versions(every, &holder, None).unwrap();
        let (abandoned, waiting) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let (mut first, mut second) = (store.await_versions(start), store.await_versions(start));
        let poll = |future: &mut crate::ChangesFuture, woken: &Arc<Woken>| {
            Pin::new(future).poll(&mut Context::from_waker(&Arc::clone(woken).into())).is_ready()
        };
        assert!(!poll(&mut first, &abandoned) && !poll(&mut second, &waiting) && !poll(&mut first, &abandoned));
        drop(first);
        let retention = Retention::Cached { recompute: Duration::ZERO };
        let spec = TensorSpec { retention, ..TensorSpec::new("x", DType::U8, &[1]) };
        store.reserve(spec, &holder).unwrap().publish().unwrap();
        assert_eq!([&abandoned, &waiting].map(|woken| woken.0.load(Ordering::SeqCst)), [0, 1]);
        assert!(poll(&mut second, &waiting));
        let queue = store.queues.find(start.log).unwrap();
        drop(second);
        assert!(lock(&queue.state).waiters.is_empty());
        store.end_versions(start);
    }
}
