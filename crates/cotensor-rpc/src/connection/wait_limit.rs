//! How long a caller waits.

use cotensor_core::waiting::Waiting;
use cotensor_core::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// The longest time between two calls of [`WaitLimit::keep_waiting`]. A signal that another thread received is noticed
/// then.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The limit of a wait: a time and a condition; and its report.
#[derive(Clone, Copy, Default)]
pub struct WaitLimit<'a> {
    /// The end of the wait.
    pub deadline: Option<Instant>,
    /// Whether the caller still waits. Called every 50 ms, and after signals.
    pub keep_waiting: Option<&'a dyn Fn() -> bool>,
    /// Reports the wait if it takes long. None for a wait that is silent by right, as one for events.
    pub waiting: Option<&'a Waiting<'a>>,
}

impl<'a> WaitLimit<'a> {
    /// A wait of at most `timeout`. A time beyond the clock's range means no limit.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self { deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), ..Self::default() }
    }

    /// The same limit with a report.
    #[must_use]
    pub fn reported(self, waiting: &'a Waiting<'a>) -> Self {
        Self { waiting: Some(waiting), ..self }
    }

    /// As [`slice`](Self::slice), also for the next report.
    pub(super) fn reported_slice(&self) -> Option<Duration> {
        self.slice().into_iter().chain(self.waiting.map(Waiting::left)).min()
    }

    /// Reports the wait if that is due.
    pub(super) fn check_report(&self) {
        if let Some(waiting) = self.waiting {
            waiting.check();
        }
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
        left.into_iter().chain(self.keep_waiting.map(|_| CHECK_INTERVAL)).min()
    }
}

/// The error of a call whose caller stopped waiting.
pub fn cancelled_call() -> Error {
    Error::new(ErrorKind::Conflict, "the caller stopped waiting")
}
