//! Prefaulting the next memfd of a series: while a program publishes large segments of equal length one after another,
//! a thread creates and prefaults the next memfd as soon as the current one is filled. Doing both at the same time
//! would take twice as long for each.

use super::free_blocks::{Block, FreeBlocks, Kept};
use crate::host::MemfdMut;
use crate::process::left_without_swap_bytes;
use cotensor_core::sync::{lock, wait, wait_timeout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// A shorter memfd is created in less time than a thread takes to start.
const BYTES_MIN: usize = 1 << 20;
/// The next memfd is prefaulted only if the system, and this process's control group, have this many times its length
/// left.
const AVAILABLE_FACTOR_MIN: u64 = 4;

/// The time limits of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The longest time between two requests of a series.
    pub(super) gap_max: Duration,
    /// After this time the next memfd is prefaulted although the current one is still being filled.
    pub(super) filling_max: Duration,
    /// After this time an unused prefaulted memfd is freed.
    pub(super) unused_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            gap_max: Duration::from_secs(1),
            filling_max: Duration::from_millis(200),
            unused_max: Duration::from_secs(2),
        }
    }
}

/// Detects series of requests and prefaults the next memfd. Its thread exists while a series lasts.
pub(super) struct Prefaulter {
    timing: Timing,
    series: Mutex<Series>,
    changed: Condvar,
}

#[derive(Default)]
struct Series {
    /// Capacity in bytes and time of the last request.
    last: Option<(usize, Instant)>,
    /// Capacity in bytes of the memfd that is to be prefaulted, and the time of the request.
    wanted: Option<(usize, Instant)>,
    /// Capacity in bytes of the memfd that is being prefaulted.
    prefaulting: Option<usize>,
    /// Memfds that are being filled.
    filling: usize,
    /// Whether the thread exists.
    running: bool,
}

/// Exists while a memfd of a series is being filled.
pub(super) struct Filling {
    prefaulter: Arc<Prefaulter>,
    free: Weak<FreeBlocks>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        // A forked child has no such thread, and the lock may be held for ever.
        if self.free.upgrade().is_some_and(|free| free.is_owner()) {
            self.prefaulter.lock().filling -= 1;
            self.prefaulter.changed.notify_all();
        }
    }
}

impl Prefaulter {
    pub(super) fn new(timing: Timing) -> Self {
        Self { timing, series: Mutex::default(), changed: Condvar::new() }
    }

    /// Before a memfd of `capacity` bytes is taken: waits for one that is being prefaulted, which is faster than
    /// creating another one at the same time. Cancels one that is not being prefaulted yet.
    pub(super) fn wait_for(&self, free: &FreeBlocks, capacity: usize) {
        if !free.is_owner() {
            return;
        }
        let mut series = self.lock();
        while series.prefaulting == Some(capacity) {
            series = self.wait(series);
        }
        series.wanted.take_if(|(wanted, _)| *wanted == capacity);
    }

    /// After a memfd of `capacity` bytes is taken, to be filled: if it continues a series, the next one will be
    /// prefaulted.
    pub(super) fn request(self: &Arc<Self>, free: &Arc<FreeBlocks>, capacity: usize) -> Option<Filling> {
        if capacity < BYTES_MIN || !free.has_room_for(capacity) {
            return None;
        }
        let now = Instant::now();
        let mut series = self.lock();
        let before = series.last.replace((capacity, now));
        if !before.is_some_and(|(known, at)| known == capacity && now - at < self.timing.gap_max) {
            return None;
        }
        series.wanted = Some((capacity, now));
        series.filling += 1;
        if series.running {
            self.changed.notify_all();
        } else {
            let (prefaulter, free) = (Arc::clone(self), Arc::downgrade(free));
            let thread = std::thread::Builder::new().name("cotensor-prefault".to_owned());
            series.running = thread.spawn(move || prefaulter.run(&free)).is_ok();
            if !series.running {
                // Without a thread nothing is prefaulted, and nothing else changes.
                series.wanted = None;
            }
        }
        Some(Filling { prefaulter: Arc::clone(self), free: Arc::downgrade(free) })
    }

    fn run(&self, free: &Weak<FreeBlocks>) {
        // The capacity of the memfd in the pool that this thread created.
        let mut created: Option<usize> = None;
        loop {
            while let Some(capacity) = self.next_capacity() {
                if let Some(free) = free.upgrade() {
                    if let Some(other) = created.take_if(|created| *created != capacity) {
                        free.remove_next(other);
                    }
                    if prefault(&free, capacity) {
                        created = Some(capacity);
                    }
                }
                self.lock().prefaulting = None;
                self.changed.notify_all();
            }
            if let (Some(free), Some(capacity)) = (free.upgrade(), created.take()) {
                free.remove_next(capacity);
            }
            let mut series = self.lock();
            if series.wanted.is_none() {
                series.running = false;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Waits for the next capacity to prefault, until no memfd is being filled; `None` at the end of the series.
    fn next_capacity(&self) -> Option<usize> {
        let mut series = self.lock();
        let mut since = Instant::now();
        loop {
            let timeout = match series.wanted {
                Some((capacity, at)) if series.filling == 0 || at.elapsed() >= self.timing.filling_max => {
                    series.wanted = None;
                    series.prefaulting = Some(capacity);
                    return Some(capacity);
                }
                Some((_, at)) => {
                    since = at;
                    self.timing.filling_max.saturating_sub(at.elapsed())
                }
                None => self.timing.unused_max.saturating_sub(since.elapsed()),
            };
            if timeout.is_zero() && series.wanted.is_none() {
                return None;
            }
            series = wait_timeout(&self.changed, series, timeout).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        lock(&self.series)
    }

    fn wait<'a>(&self, series: MutexGuard<'a, Series>) -> MutexGuard<'a, Series> {
        wait(&self.changed, series)
    }
}

/// Adds a prefaulted memfd to the pool, unless one is free or memory is short.
fn prefault(free: &Arc<FreeBlocks>, capacity: usize) -> bool {
    let enough = left_without_swap_bytes().is_none_or(|left| left / AVAILABLE_FACTOR_MIN >= capacity as u64);
    if free.contains(capacity) || !enough {
        return false;
    }
    let created = MemfdMut::create(capacity).and_then(|memfd| memfd.prefault().map(|()| memfd));
    created.is_ok_and(|memfd| free.put(Block { memfd, stale: 0, kept: Kept::Next }))
}

#[cfg(test)]
impl Prefaulter {
    pub(super) fn is_running(&self) -> bool {
        self.lock().running
    }

    /// Waits until every requested memfd is prefaulted.
    pub(super) fn wait_until_done(&self) {
        let mut series = self.lock();
        while series.wanted.is_some() || series.prefaulting.is_some() {
            series = self.wait(series);
        }
    }

    /// Waits until the thread has freed unused memfds and ends.
    pub(super) fn wait_until_ended(&self) {
        let mut series = self.lock();
        while series.running {
            series = self.wait(series);
        }
    }
}
