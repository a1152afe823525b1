//! The time limit of a call, from its start to its answer.

use super::wait_limit::WaitLimit;
use cotensor_core::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// A provider answers a call itself when its time is over. That answer may arrive this much later.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);
/// The same for the state of a task, which is a result and not an error.
const STATE_MARGIN: Duration = Duration::from_secs(1);

/// The time limit of a call. It starts with the value and covers the lookup of the function, sending and waiting.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    timeout: Option<Duration>,
    end: Option<Instant>,
    margin: Duration,
}

impl From<Option<Duration>> for Deadline {
    /// A limit of `timeout` from now. None and times beyond the clock's range mean no limit.
    fn from(timeout: Option<Duration>) -> Self {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { timeout, end, margin: ANSWER_MARGIN }
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Some(timeout).into()
    }
}

impl Deadline {
    /// The remaining time.
    pub fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// The remaining time in milliseconds, as messages carry it.
    pub fn left_ms(&self) -> Option<u64> {
        self.left().map(millis)
    }

    /// The same limit, or `timeout` from now if that ends sooner.
    pub fn at_most(self, timeout: Duration) -> Self {
        match self.left() {
            Some(left) if left <= timeout => self,
            _ => Self { margin: self.margin, ..timeout.into() },
        }
    }

    /// The same limit, for a call that the provider answers with a state when the time is over.
    pub fn for_state(self) -> Self {
        Self { margin: STATE_MARGIN, ..self }
    }

    /// The limit of the caller's wait for the provider.
    pub fn wait_limit<'a>(&self, keep_waiting: Option<&'a dyn Fn() -> bool>) -> WaitLimit<'a> {
        WaitLimit { deadline: self.end.and_then(|end| end.checked_add(self.margin)), keep_waiting, waiting: None }
    }

    /// Whether the time is over.
    pub fn has_passed(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// The error for a provider that has not answered; `field` names the function or method.
    pub fn timeout_error(&self, provider: &str, field: &str) -> Error {
        let within = self.seconds();
        let message = format!("{provider} did not answer within {within} s: it is stopped, or too busy to answer");
        Error::new(ErrorKind::TimedOut, message).in_field(field)
    }

    /// The whole time in seconds, rounded to a millisecond.
    pub fn seconds(&self) -> f64 {
        (self.timeout.unwrap_or_default().as_secs_f64() * 1000.0).round() / 1000.0
    }
}

/// A time limit in milliseconds, rounded up.
pub fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
