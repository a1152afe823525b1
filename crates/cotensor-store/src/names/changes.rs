//! The log of changes of names, for callers that wait for them. It keeps the latest change of each name, up to a limit.

use super::version_queue::{Polled, VersionQueue};
use crate::{ChangePosition, NameChange, NameChanges, NameFilter, TensorId};
use cotensor_core::sync::lock;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The most changes that are kept.
const CHANGES_MAX: usize = 16 << 10;
/// The most bytes of their names.
const CHANGES_BYTES_MAX: usize = 4 << 20;
/// The most changes of one answer.
const ANSWER_MAX: usize = 4096;
/// The bytes of names after which an answer ends.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The changes of one store.
pub(crate) struct ChangeLog {
    /// Differs between logs.
    id: u64,
    /// Whether a caller has waited at some time. Nothing is recorded before.
    watched: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the latest change.
    latest: u64,
    /// Changes up to this number are forgotten.
    forgotten: u64,
    changes: BTreeMap<u64, NameChange>,
    numbers: HashMap<String, u64, foldhash::fast::RandomState>,
    bytes: usize,
    waiters: HashMap<u64, (NameFilter, Waker), foldhash::fast::RandomState>,
    next_waiter: u64,
}

impl Default for ChangeLog {
    fn default() -> Self {
        let id = foldhash::fast::RandomState::default().hash_one(0);
        Self { id, watched: AtomicBool::new(false), state: Mutex::default() }
    }
}

impl ChangeLog {
    /// Records the newest version of `name`, or that it has none. Called while the name is locked.
    pub(crate) fn record(&self, name: &str, id: Option<TensorId>) {
        // A caller that begins to wait sets the flag and then locks every name to list it: it sees this change there, or
        // this call sees the flag.
        if !self.watched.load(Ordering::SeqCst) {
            return;
        }
        for waker in lock(&self.state).add(name, id) {
            waker.wake();
        }
    }

    /// The changes after `since`, as soon as there is one. Ready at once without `since`.
    pub(crate) fn wait(self: &Arc<Self>, filter: NameFilter, since: Option<ChangePosition>) -> ChangesFuture {
        self.watched.store(true, Ordering::SeqCst);
        ChangesFuture(Wait::Log { log: Arc::clone(self), filter, since, waiter: None })
    }
}

impl State {
    /// Adds a change. Returns the wakers of the callers that wait for it.
    fn add(&mut self, name: &str, id: Option<TensorId>) -> Vec<Waker> {
        self.latest += 1;
        if let Some(number) = self.numbers.insert(name.to_owned(), self.latest) {
            self.changes.remove(&number);
        } else {
            self.bytes += name.len();
        }
        self.changes.insert(self.latest, NameChange { name: name.to_owned(), id });
        while self.changes.len() > CHANGES_MAX || self.bytes > CHANGES_BYTES_MAX {
            let Some((number, oldest)) = self.changes.pop_first() else { break };
            self.numbers.remove(&oldest.name);
            self.bytes -= oldest.name.len();
            self.forgotten = number;
        }
        self.waiters.values().filter(|(filter, _)| filter.selects(name)).map(|(_, waker)| waker.clone()).collect()
    }

    /// The changes after `since`; `None` when there are none.
    fn after(&self, log: u64, filter: &NameFilter, since: Option<ChangePosition>) -> Option<NameChanges> {
        let position = ChangePosition { log, number: self.latest };
        let none = |incomplete| NameChanges { position, changes: Vec::new(), incomplete, dropped: 0 };
        let Some(since) = since else { return Some(none(false)) };
        if since.log != log || since.number < self.forgotten || since.number > self.latest {
            return Some(none(true));
        }
        let (mut changes, mut bytes, mut number) = (Vec::new(), 0, self.latest);
        for (&at, change) in self.changes.range(since.number + 1..) {
            if filter.selects(&change.name) {
                bytes += change.name.len();
                changes.push(change.clone());
                if changes.len() == ANSWER_MAX || bytes > ANSWER_BYTES_MAX {
                    number = at;
                    break;
                }
            }
        }
        let position = ChangePosition { log, number };
        (!changes.is_empty()).then_some(NameChanges { position, changes, incomplete: false, dropped: 0 })
    }

    fn position(&self, log: u64) -> ChangePosition {
        ChangePosition { log, number: self.latest }
    }
}

/// A wait for changes of names.
#[must_use]
pub struct ChangesFuture(Wait);

enum Wait {
    Log {
        log: Arc<ChangeLog>,
        filter: NameFilter,
        since: Option<ChangePosition>,
        /// The number under which the log knows this wait.
        waiter: Option<u64>,
    },
    Queue {
        queue: Arc<VersionQueue>,
        /// The number of the last change that the reader has read.
        since: u64,
        /// The number under which the queue knows this wait.
        waiter: Option<u64>,
    },
    /// The answer is known.
    Known(NameChanges),
}

impl ChangesFuture {
    /// The next changes of a queue.
    pub(crate) fn of_queue(queue: Arc<VersionQueue>, since: u64) -> Self {
        Self(Wait::Queue { queue, since, waiter: None })
    }

    /// No change: the position of a new queue, or with `incomplete` of one that has ended.
    pub fn known(position: ChangePosition, incomplete: bool) -> Self {
        Self(Wait::Known(NameChanges { position, changes: Vec::new(), incomplete, dropped: 0 }))
    }

    /// No change, and the current position: the answer when the wait ends first.
    #[must_use]
    pub fn nothing(&self) -> NameChanges {
        let position = match &self.0 {
            Wait::Log { log, since, .. } => since.unwrap_or_else(|| lock(&log.state).position(log.id)),
            Wait::Queue { queue, since, .. } => ChangePosition { number: *since, ..queue.start() },
            Wait::Known(changes) => changes.position,
        };
        NameChanges { position, changes: Vec::new(), incomplete: false, dropped: 0 }
    }
}

impl Future for ChangesFuture {
    type Output = NameChanges;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NameChanges> {
        match &mut self.0 {
            Wait::Log { log, filter, since, waiter } => {
                let mut state = lock(&log.state);
                if let Some(changes) = state.after(log.id, filter, *since) {
                    return Poll::Ready(changes);
                }
                // None of the changes so far is selected, so the log may forget them.
                *since = Some(state.position(log.id));
                let number = *waiter.get_or_insert_with(|| {
                    state.next_waiter += 1;
                    state.next_waiter
                });
                state.waiters.insert(number, (filter.clone(), context.waker().clone()));
                Poll::Pending
            }
            Wait::Queue { queue, since, waiter } => match queue.poll(*since, waiter, context.waker()) {
                Polled::Changes(changes) => Poll::Ready(changes),
                Polled::Nothing => Poll::Pending,
                Polled::Ended => {
                    let position = ChangePosition { number: *since, ..queue.start() };
                    Poll::Ready(NameChanges { position, changes: Vec::new(), incomplete: true, dropped: 0 })
                }
            },
            Wait::Known(changes) => Poll::Ready(changes.clone()),
        }
    }
}

impl Drop for ChangesFuture {
    fn drop(&mut self) {
        match &self.0 {
            Wait::Log { log, waiter: Some(number), .. } => drop(lock(&log.state).waiters.remove(number)),
            Wait::Queue { queue, waiter: Some(number), .. } => queue.end_wait(*number),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(version: u64) -> Option<TensorId> {
        Some(TensorId { name_id: 1, version })
    }

    fn poll(future: &mut ChangesFuture) -> Option<NameChanges> {
        match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(changes) => Some(changes),
            Poll::Pending => None,
        }
    }

    fn all() -> NameFilter {
        NameFilter::Prefix(String::new())
    }

    fn now(log: &Arc<ChangeLog>, since: Option<ChangePosition>, filter: NameFilter) -> Option<NameChanges> {
        poll(&mut log.wait(filter, since))
    }

    #[test]
    fn changes_are_coalesced_by_name_and_filtered() {
        let log = Arc::new(ChangeLog::default());
        log.record("before", id(1));
        let start = now(&log, None, all()).unwrap();
        assert!(start.changes.is_empty() && !start.incomplete);
        assert_eq!(now(&log, Some(start.position), all()), None, "unwatched changes are not recorded");
        for version in 1..=3 {
            log.record("layer.0", id(version));
        }
        log.record("other", id(1));
        log.record("layer.0", None);
        let changed = now(&log, Some(start.position), NameFilter::Prefix("layer.".to_owned())).unwrap();
        assert_eq!(changed.changes, [NameChange { name: "layer.0".to_owned(), id: None }]);
        assert_eq!(now(&log, Some(changed.position), all()), None);
        let exact = now(&log, Some(start.position), NameFilter::Name("other".to_owned())).unwrap();
        assert_eq!(exact.changes, [NameChange { name: "other".to_owned(), id: id(1) }]);
    }

    #[test]
    fn log_is_bounded_and_says_what_it_forgot() {
        let log = Arc::new(ChangeLog::default());
        let start = now(&log, None, all()).unwrap().position;
        for number in 0..=CHANGES_MAX {
            log.record(&format!("{number:01000}"), id(1));
        }
        let (names, forgotten) = {
            let state = lock(&log.state);
            let names = state.changes.len();
            assert!(names <= CHANGES_BYTES_MAX / 1000 && state.bytes == names * 1000, "{names}");
            assert_eq!(state.numbers.len(), names);
            (names, state.forgotten)
        };
        let late = now(&log, Some(start), all()).unwrap();
        assert!(late.incomplete && late.changes.is_empty());
        // Answers are bounded too: the rest follows.
        let mut position = ChangePosition { number: forgotten, ..start };
        let mut seen = 0;
        while let Some(part) = now(&log, Some(position), all()) {
            assert!(part.changes.len() <= 1 + ANSWER_BYTES_MAX / 1000);
            (seen, position) = (seen + part.changes.len(), part.position);
        }
        assert_eq!((seen, position), (names, late.position));
        let other = ChangePosition { log: start.log.wrapping_add(1), number: 0 };
        assert!(now(&log, Some(other), all()).unwrap().incomplete, "a position of another store");
    }

    #[test]
    fn position_passes_changes_that_are_not_selected() {
        let log = Arc::new(ChangeLog::default());
        let start = now(&log, None, all()).unwrap().position;
        let mut wait = log.wait(NameFilter::Name("x".to_owned()), Some(start));
        log.record("y", id(1));
        assert!(poll(&mut wait).is_none());
        assert_eq!(wait.nothing().position.number, start.number + 1);
    }

    #[test]
    fn dropped_waits_leave_nothing() {
        let log = Arc::new(ChangeLog::default());
        let start = now(&log, None, all()).unwrap().position;
        let mut waits: Vec<_> = (0..3).map(|_| log.wait(all(), Some(start))).collect();
        assert!(waits.iter_mut().all(|wait| poll(wait).is_none() && poll(wait).is_none()));
        assert_eq!(lock(&log.state).waiters.len(), 3);
        log.record("x", id(1));
        assert_eq!(waits[0].nothing().position, start, "the change is not lost");
        drop(waits);
        assert!(lock(&log.state).waiters.is_empty());
    }
}
