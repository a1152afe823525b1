//! One thread for all time limits.

use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how many ticks a hurry lasts.
const HURRIED_TICKS: u32 = 100;

type Alarm = Box<dyn FnOnce() + Send>;

/// Does things later. Clones are the same timer.
#[derive(Clone, Default)]
pub(super) struct Timer(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    alarms: BTreeMap<(Instant, u64), Alarm>,
    next: u64,
    /// Until when the timer's thread sleeps, while it does.
    asleep_until: Option<Instant>,
    /// Ticks often for so many times.
    hurried: u32,
    closed: bool,
}

/// Something that will be done, unless this is dropped before.
pub(super) struct Limit {
    timer: Timer,
    key: (Instant, u64),
}

impl Drop for Limit {
    fn drop(&mut self) {
        let gone = lock(&self.timer.0.state).alarms.remove(&self.key);
        drop(gone);
    }
}

impl Timer {
    /// Does `alarm` after `delay`. `None` for a delay beyond what the clock counts.
    pub(super) fn after(&self, delay: Duration, alarm: Alarm) -> Option<Limit> {
        let at = Instant::now().checked_add(delay)?;
        let mut state = lock(&self.0.state);
        state.next += 1;
        let key = (at, state.next);
        state.alarms.insert(key, alarm);
        // Most alarms are for long after the next tick, and taken back before that: they wake nobody.
        let early = state.asleep_until.is_some_and(|until| at < until);
        drop(state);
        if early {
            self.0.changed.notify_one();
        }
        Some(Limit { timer: self.clone(), key })
    }

    /// Ticks often for a while.
    pub(super) fn hurry(&self) {
        let mut state = lock(&self.0.state);
        // Woken for the first of many only.
        let first = state.hurried == 0;
        state.hurried = HURRIED_TICKS;
        drop(state);
        if first {
            self.0.changed.notify_one();
        }
    }

    pub(super) fn close(&self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_one();
    }

    /// The timer's thread, until it is closed. Does `tick(false)` once in every `period`, too, and `tick(true)` in every `brief`
    /// one for a while after [`hurry`](Self::hurry).
    pub(super) fn run(&self, period: Duration, brief: Duration, tick: impl Fn(bool)) {
        let (mut ticked, mut looked) = (Instant::now(), Instant::now());
        let mut state = lock(&self.0.state);
        while !state.closed {
            let now = Instant::now();
            if state.alarms.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
                let alarm = state.alarms.pop_first();
                drop(state);
                if let Some((_, alarm)) = alarm {
                    alarm();
                }
                state = lock(&self.0.state);
                continue;
            }
            if now.duration_since(ticked) >= period {
                ticked = now;
                drop(state);
                tick(false);
                state = lock(&self.0.state);
                continue;
            }
            if state.hurried > 0 && now.duration_since(looked) >= brief {
                looked = now;
                state.hurried -= 1;
                drop(state);
                tick(true);
                state = lock(&self.0.state);
                continue;
            }
            let next = state.alarms.first_key_value().map_or(period, |((at, _), _)| at.duration_since(now));
            let wait = next.min(period - now.duration_since(ticked));
            let wait = if state.hurried > 0 { wait.min(brief - now.duration_since(looked)) } else { wait };
            state.asleep_until = now.checked_add(wait);
            state = self.0.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            state.asleep_until = None;
        }
    }
}
