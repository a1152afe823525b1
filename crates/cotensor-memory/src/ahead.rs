//! Making the next memfd ready while the last is being filled: whoever puts one large tensor after the other, of one size,
//! finds memory that is warm.

use crate::memfd::MemfdMut;
use crate::pool::Shelf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Shorter ones are made in less time than a thread takes to begin.
const BYTES_MIN: usize = 1 << 20;
/// Two requests that are no further apart are a row.
const ROW: Duration = Duration::from_secs(1);
/// What nobody wanted for so long is given back.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where the system has less left than so many times what would be made, nothing is.
const LEFT_MIN: u64 = 4;

/// What was asked for last, and what is to be made ready. There is a thread for it as long as the row lasts.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: Option<(usize, Instant)>,
    /// Bytes of the next.
    wanted: Option<usize>,
    working: bool,
}

impl Ahead {
    /// Somebody takes a memfd of `capacity` bytes: if it is not the first in a row, the next is made ready.
    pub(crate) fn asked(self: &Arc<Self>, shelf: &Arc<Shelf>, capacity: usize) {
        if capacity < BYTES_MIN || !shelf.has_room_for(capacity) {
            return;
        }
        let mut state = self.lock();
        let before = state.last.replace((capacity, Instant::now()));
        if !before.is_some_and(|(known, at)| known == capacity && at.elapsed() < ROW) {
            return;
        }
        state.wanted = Some(capacity);
        if state.working {
            self.changed.notify_one();
            return;
        }
        let (ahead, shelf) = (Arc::clone(self), Arc::downgrade(shelf));
        let thread = std::thread::Builder::new().name("cotensor-ahead".to_owned());
        // Without a thread there is nothing ready, and nothing else is lost.
        state.working = thread.spawn(move || ahead.work(&shelf)).is_ok();
    }

    fn work(&self, shelf: &Weak<Shelf>) {
        let mut made: Option<usize> = None;
        while let Some(capacity) = self.next() {
            let Some(shelf) = shelf.upgrade() else { continue };
            if let Some(other) = made.take_if(|made| *made != capacity) {
                shelf.drop_warm(other);
            }
            let ready = || {
                let memfd = MemfdMut::create(capacity).ok()?;
                memfd.prefault().ok().map(|()| memfd)
            };
            if !shelf.has_warm(capacity)
                && available_bytes().is_none_or(|left| left / LEFT_MIN >= capacity as u64)
                && let Some(memfd) = ready()
            {
                shelf.keep_warm(memfd);
                made = Some(capacity);
            }
        }
        if let (Some(shelf), Some(capacity)) = (shelf.upgrade(), made) {
            shelf.drop_warm(capacity);
        }
    }

    /// What is to be made next; none when the row is over.
    fn next(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if let Some(capacity) = state.wanted.take() {
                return Some(capacity);
            }
            let waited = self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && state.wanted.is_none() {
                state.working = false;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that the system can still give without swapping, where it says.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
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
        assert_eq!(pool.usage().kept, 0, "no row");
        let second = publish(3 << 20, 2);
        until("the next is ready", || pool.usage().kept == 1);
        let before = pool.usage().reused;
        let third = publish(3 << 20, 3);
        assert_eq!(pool.usage().reused, before + 1);
        for (tensor, byte) in [(first, 1), (second, 2), (third, 3)] {
            assert!(tensor.bytes().unwrap().iter().all(|&found| found == byte));
        }
        until("what nobody wants is given back", || pool.usage().kept_bytes == 0);
        publish(3 << 20, 4);
        publish(3 << 20, 5);
        until("a new row", || pool.usage().kept == 1);
    }

    #[test]
    fn it_makes_no_more_than_may_be_kept() {
        let pool = MemfdPool::new(4 << 20);
        for _ in 0..4 {
            drop(pool.copy_of(&vec![1; 5 << 20]).unwrap().freeze().unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(pool.usage().kept, 0);
    }
}
