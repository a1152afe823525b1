//! Memory that this process keeps ready for later tensors and calls: its bound, and what the daemon shows of it.

use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_memory::{MemfdPool, Unused};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// The most unused bytes of all parts of a client together. Memory that the program has prefaulted itself comes on top.
const UNUSED_BYTES_MAX: usize = 64 << 20;

/// A part of a client that keeps memory for later tensors or calls: its blocks, its pool, and the arena of each connection.
pub trait KeepsMemory: Send + Sync {
    /// The memory that nothing uses now, without what the program has prefaulted itself.
    fn unused(&self, now: Instant) -> Unused;

    /// Gives up what of it was used least recently.
    fn give_up_oldest(&self);
}

/// All of a client.
#[derive(Default)]
pub(super) struct ReadyMemory {
    parts: Mutex<Vec<Weak<dyn KeepsMemory>>>,
    /// The bytes that the daemon shows, beside the blocks, which it knows.
    shown: Mutex<Shown>,
}

/// The sum of changes. Two threads that change one part may report in the other order, so the sum may be below 0 for a moment.
#[derive(Default)]
struct Shown(i128);

impl Shown {
    fn change(&mut self, before: u64, now: u64) {
        self.0 += i128::from(now) - i128::from(before);
    }

    fn bytes(&self) -> u64 {
        u64::try_from(self.0.max(0)).unwrap_or(u64::MAX)
    }
}

impl ReadyMemory {
    pub(super) fn add(&self, part: Weak<dyn KeepsMemory>) {
        let mut parts = lock(&self.parts);
        parts.retain(|part| part.strong_count() > 0);
        parts.push(part);
    }

    /// Gives up memory until at most [`UNUSED_BYTES_MAX`] bytes are unused, what was used least recently first.
    pub(super) fn bound(&self, now: Instant) {
        let parts: Vec<_> = lock(&self.parts).iter().filter_map(Weak::upgrade).collect();
        let mut unused: Vec<_> = parts.iter().map(|part| part.unused(now)).collect();
        while unused.iter().map(|unused| unused.bytes).sum::<usize>() > UNUSED_BYTES_MAX {
            let oldest = unused.iter().enumerate().filter_map(|(at, unused)| Some((unused.since?, at)));
            let Some((_, at)) = oldest.min() else { return };
            parts[at].give_up_oldest();
            unused[at] = parts[at].unused(now);
        }
    }

    /// A part that had `before` bytes has `now`. Reports all in the present session.
    pub(super) fn change(&self, before: u64, now: u64, session: impl FnOnce() -> Arc<Session>) {
        let mut all = lock(&self.shown);
        all.change(before, now);
        // Under the lock: the daemon gets the totals in their order.
        report(&session(), all.bytes());
    }

    /// Reports it in a new session.
    pub(super) fn reopen(&self, session: &Session) {
        let all = lock(&self.shown).bytes();
        if all > 0 {
            report(session, all);
        }
    }
}

fn report(session: &Session, bytes: u64) {
    session.notify::<p::RecordReady>(&p::ReadyParams { bytes });
}

impl KeepsMemory for MemfdPool {
    fn unused(&self, _: Instant) -> Unused {
        MemfdPool::unused(self)
    }

    fn give_up_oldest(&self) {
        MemfdPool::give_up_oldest(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    /// Memory of equal lengths, the oldest first.
    struct Part(Mutex<Vec<Instant>>);

    impl KeepsMemory for Part {
        fn unused(&self, _: Instant) -> Unused {
            lock(&self.0).iter().map(|since| (20 * MIB, *since)).collect()
        }

        fn give_up_oldest(&self) {
            lock(&self.0).remove(0);
        }
    }

    #[test]
    fn changes_in_another_order_have_the_same_sum() {
        let mut shown = Shown::default();
        let steps = [(30, 10), (0, 30), (5, 10), (10, 5)].map(|(before, now)| {
            shown.change(before, now);
            shown.bytes()
        });
        assert_eq!(steps, [0, 10, 15, 10]);
        shown.change(10, 0);
        assert_eq!(shown.bytes(), 0);
    }

    #[test]
    fn memory_that_was_used_least_recently_is_given_up_first() {
        let (ready, start) = (ReadyMemory::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let parts: Vec<_> = [vec![1, 4, 6], vec![], vec![2, 5], vec![3]]
            .map(|seconds| Arc::new(Part(Mutex::new(seconds.into_iter().map(at).collect()))))
            .into();
        parts.iter().for_each(|part| ready.add(Arc::downgrade(part) as Weak<dyn KeepsMemory>));
        let left = || parts.iter().map(|part| lock(&part.0).len()).collect::<Vec<_>>();
        ready.bound(at(7));
        assert_eq!(left(), [2, 0, 1, 0], "those of seconds 4, 5 and 6 are 60 MiB");
        ready.bound(at(8));
        assert_eq!(left(), [2, 0, 1, 0]);
    }
}
