//! How long a caller waits.

use cotensor_core::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// The longest time between two calls of [`WaitLimit::keep_waiting`]. A signal that another thread received is noticed
/// then.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The limit of a wait: a time and a condition.
#[derive(Clone, Copy, Default)]
pub struct WaitLimit<'a> {
    /// The end of the wait.
    pub deadline: Option<Instant>,
    /// Whether the caller still waits. Called every 50 ms, and after signals.
    pub keep_waiting: Option<&'a dyn Fn() -> bool>,
}

impl WaitLimit<'_> {
    /// A wait of at most `timeout`. A time beyond the clock's range is no limit.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self { deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), keep_waiting: None }
    }

    /// No wait at all.
    pub(super) fn now() -> Self {
        Self::after(Some(Duration::ZERO))
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub(super) fn is_over(&self) -> bool {
        self.has_passed() || self.keep_waiting.is_some_and(|keep_waiting| !keep_waiting())
    }

    /// The time to sleep before the next check, if there is a limit.
    pub(super) fn slice(&self) -> Option<Duration> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match self.keep_waiting {
            Some(_) => Some(left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL))),
            None => left,
        }
    }
}

/// The error of a call whose caller stopped waiting.
pub fn cancelled_call() -> Error {
    Error::new(ErrorKind::Conflict, "the caller stopped waiting")
}
