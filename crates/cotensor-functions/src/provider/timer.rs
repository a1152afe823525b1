//! One thread for all time limits.

use cotensor_core::sync::{lock, wait_timeout};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

type Callback = Box<dyn FnOnce() + Send>;

/// Runs callbacks later. Clones share one thread.
#[derive(Clone, Default)]
pub(super) struct Timer(Arc<Inner>);

#[derive(Default)]
struct Inner {
    schedule: Mutex<Schedule>,
    changed: Condvar,
}

#[derive(Default)]
struct Schedule {
    callbacks: BTreeMap<(Instant, u64), Callback>,
    next: u64,
    /// The end of the timer thread's sleep, while it sleeps.
    asleep_until: Option<Instant>,
    closed: bool,
}

/// A callback that will run. Dropping this cancels it.
pub(super) struct TimeLimit {
    timer: Timer,
    key: (Instant, u64),
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        let cancelled = lock(&self.timer.0.schedule).callbacks.remove(&self.key);
        drop(cancelled);
    }
}

impl Timer {
    /// Runs `callback` after `delay`. `None` for a delay beyond the range of [`Instant`].
    pub(super) fn after(&self, delay: Duration, callback: Callback) -> Option<TimeLimit> {
        let at = Instant::now().checked_add(delay)?;
        let mut schedule = lock(&self.0.schedule);
        schedule.next += 1;
        let key = (at, schedule.next);
        schedule.callbacks.insert(key, callback);
        // Most limits are cancelled before they pass: they must not wake the timer thread.
        let is_earlier = schedule.asleep_until.is_some_and(|until| at < until);
        drop(schedule);
        if is_earlier {
            self.0.changed.notify_one();
        }
        Some(TimeLimit { timer: self.clone(), key })
    }

    pub(super) fn close(&self) {
        lock(&self.0.schedule).closed = true;
        self.0.changed.notify_one();
    }

    /// The timer thread: runs callbacks, and `tick` once in every `period`, until the timer is closed.
    pub(super) fn run(&self, period: Duration, tick: impl Fn()) {
        let mut ticked = Instant::now();
        let mut schedule = lock(&self.0.schedule);
        while !schedule.closed {
            let now = Instant::now();
            if schedule.callbacks.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
                let first = schedule.callbacks.pop_first();
                drop(schedule);
                if let Some((_, callback)) = first {
                    callback();
                }
                schedule = lock(&self.0.schedule);
                continue;
            }
            if now.duration_since(ticked) >= period {
                ticked = now;
                drop(schedule);
                tick();
                schedule = lock(&self.0.schedule);
                continue;
            }
            let next = schedule.callbacks.first_key_value().map_or(period, |((at, _), _)| at.duration_since(now));
            let wait = next.min(period - now.duration_since(ticked));
            schedule.asleep_until = now.checked_add(wait);
            schedule = wait_timeout(&self.0.changed, schedule, wait).0;
            schedule.asleep_until = None;
        }
    }
}
