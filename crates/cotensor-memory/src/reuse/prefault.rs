//! Making the next memfd ready as soon as the last is filled: whoever puts one large tensor after the other, of one size,
//! finds memory that is warm. Not while the last is being filled, which would take twice as long.

use super::pool::FreeBlocks;
use crate::host::MemfdMut;
use crate::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Shorter ones are made in less time than a thread takes to begin.
const BYTES_MIN: usize = 1 << 20;
/// Two requests that are no further apart are a row.
const ROW: Duration = Duration::from_secs(1);
/// Who takes longer to fill a memfd is not kept from it by making the next.
const FILLING_MAX: Duration = Duration::from_millis(200);
/// What nobody wanted for so long is given back.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where the system, or this process's control group, has less left than so many times what would be made, nothing is.
const LEFT_MIN: u64 = 4;

/// What was asked for last, and what is to be made ready. There is a thread for it as long as the row lasts.
#[derive(Default)]
pub(crate) struct Prefaulter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: Option<(usize, Instant)>,
    /// Bytes of the next, and since when it is wanted.
    wanted: Option<(usize, Instant)>,
    /// Bytes of what is being made.
    making: Option<usize>,
    /// Memfds that are being filled.
    filling: usize,
    working: bool,
}

/// A memfd is being filled as long as this is there.
pub(crate) struct Filling {
    ahead: Arc<Prefaulter>,
    shelf: Weak<FreeBlocks>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        // A forked child has neither the thread nor, perhaps, the lock.
        if self.shelf.upgrade().is_some_and(|shelf| shelf.is_ours()) {
            self.ahead.lock().filling -= 1;
            self.ahead.changed.notify_all();
        }
    }
}

impl Prefaulter {
    /// Before somebody takes a memfd of `capacity` bytes: one that is being made is waited for, which is faster than making
    /// another beside it, and one that is only to be made is not any more.
    pub(crate) fn wait_for(&self, shelf: &FreeBlocks, capacity: usize) {
        if !shelf.is_ours() {
            return;
        }
        let mut state = self.lock();
        while state.making == Some(capacity) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted.take_if(|(wanted, _)| *wanted == capacity);
    }

    /// Somebody takes a memfd of `capacity` bytes, and fills it: if it is not the first in a row, the next is made ready.
    pub(crate) fn asked(self: &Arc<Self>, shelf: &Arc<FreeBlocks>, capacity: usize) -> Option<Filling> {
        if capacity < BYTES_MIN || !shelf.has_room_for(capacity) {
            return None;
        }
        let now = Instant::now();
        let mut state = self.lock();
        let before = state.last.replace((capacity, now));
        if !before.is_some_and(|(known, at)| known == capacity && now - at < ROW) {
            return None;
        }
        state.wanted = Some((capacity, now));
        state.filling += 1;
        if state.working {
            // It sleeps for longer than a filling may take.
            self.changed.notify_all();
        } else {
            let (ahead, shelf) = (Arc::clone(self), Arc::downgrade(shelf));
            let thread = std::thread::Builder::new().name("cotensor-ahead".to_owned());
            // Without a thread there is nothing ready, and nothing else is lost.
            state.working = thread.spawn(move || ahead.work(&shelf)).is_ok();
        }
        Some(Filling { ahead: Arc::clone(self), shelf: Arc::downgrade(shelf) })
    }

    fn work(&self, shelf: &Weak<FreeBlocks>) {
        let mut made: Option<usize> = None;
        while let Some(capacity) = self.next() {
            if let Some(shelf) = shelf.upgrade() {
                if let Some(other) = made.take_if(|made| *made != capacity) {
                    shelf.drop_warm(other);
                }
                let ready = || {
                    let memfd = MemfdMut::create(capacity).ok()?;
                    memfd.prefault().ok().map(|()| memfd)
                };
                if !shelf.has_warm(capacity)
                    && left_bytes().is_none_or(|left| left / LEFT_MIN >= capacity as u64)
                    && let Some(memfd) = ready()
                {
                    shelf.keep_warm(memfd);
                    made = Some(capacity);
                }
            }
            self.lock().making = None;
            self.changed.notify_all();
        }
        if let (Some(shelf), Some(capacity)) = (shelf.upgrade(), made) {
            shelf.drop_warm(capacity);
        }
    }

    /// What is to be made next, once nothing is being filled; none when the row is over.
    fn next(&self) -> Option<usize> {
        let mut state = self.lock();
        let mut since = Instant::now();
        loop {
            let patience = match state.wanted {
                Some((capacity, at)) if state.filling == 0 || at.elapsed() >= FILLING_MAX => {
                    state.wanted = None;
                    state.making = Some(capacity);
                    return Some(capacity);
                }
                Some((_, at)) => {
                    since = at;
                    FILLING_MAX.saturating_sub(at.elapsed())
                }
                None => PATIENCE.saturating_sub(since.elapsed()),
            };
            if patience.is_zero() {
                state.working = false;
                return None;
            }
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that can still be made without swapping, or the kernel's ending somebody, as far as is known.
fn left_bytes() -> Option<u64> {
    let within = process::cgroup_memory_limit().map(|(limit, used)| limit.saturating_sub(used));
    process::available_bytes().into_iter().chain(within).min()
}

#[cfg(test)]
mod tests {
    use crate::MemfdPool;
    use cotensor_core::Memory;
    use std::time::{Duration, Instant};

    fn until(what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: not so after a minute");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_second_of_a_row_has_the_third_made_ready_which_goes_when_nobody_wants_it() {
        let pool = MemfdPool::new(64 << 20);
        let publish = |len: usize, byte| pool.copy_of(&vec![byte; len]).unwrap().freeze().unwrap();
        let first = publish(3 << 20, 1);
        publish(5 << 20, 1);
        publish(3 << 20, 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(pool.stats().cached, 0, "no row");
        let second = publish(3 << 20, 2);
        until("the next is ready", || pool.stats().cached == 1);
        let before = pool.stats().hits;
        let third = publish(3 << 20, 3);
        assert_eq!(pool.stats().hits, before + 1);
        for (tensor, byte) in [(first, 1), (second, 2), (third, 3)] {
            assert!(tensor.bytes().unwrap().iter().all(|&found| found == byte));
        }
        until("what nobody wants is given back", || pool.stats().cached_bytes == 0);
        publish(3 << 20, 4);
        publish(3 << 20, 5);
        until("a new row", || pool.stats().cached == 1);
    }

    #[test]
    fn who_fills_a_memfd_for_long_has_the_next_made_ready_all_the_same() {
        let pool = MemfdPool::new(64 << 20);
        drop(pool.reserve(3 << 20).unwrap().freeze().unwrap());
        let mut slow = pool.reserve(3 << 20).unwrap();
        until("the next is ready", || pool.stats().cached == 1);
        slow.write_at(0, &[7; 100]).unwrap();
        // One that is given up comes back beside it.
        drop(slow);
        assert_eq!(pool.stats().cached, 2);
    }

    #[test]
    fn a_row_may_have_no_pauses() {
        let pool = MemfdPool::new(64 << 20);
        for round in 1..=40 {
            let segment = pool.copy_of(&vec![round; 2 << 20]).unwrap().freeze().unwrap();
            assert!(segment.bytes().unwrap().iter().all(|&found| found == round));
        }
        let stats = pool.stats();
        assert_eq!(stats.misses + stats.hits, 40);
    }

    #[test]
    fn it_makes_no_more_than_may_be_kept() {
        let pool = MemfdPool::new(4 << 20);
        for _ in 0..4 {
            drop(pool.copy_of(&vec![1; 5 << 20]).unwrap().freeze().unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(pool.stats().cached, 0);
    }
}
