//! The time limit of a call, from its beginning to its answer.

use super::Until;
use cotensor_core::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// A provider answers by itself when a call's time is over. This is how much later that answer may come.
const ANSWER_GRACE: Duration = Duration::from_millis(100);
/// The same for the state of a task, which is an answer and no error.
const STATE_GRACE: Duration = Duration::from_secs(1);

/// The time limit of a call. It counts from here: looking the function up, sending and waiting are all within it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    timeout: Option<Duration>,
    end: Option<Instant>,
    grace: Duration,
}

impl From<Option<Duration>> for Deadline {
    /// `timeout` from now on; none is no limit, and so is a time beyond the clock's range.
    fn from(timeout: Option<Duration>) -> Self {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { timeout, end, grace: ANSWER_GRACE }
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Some(timeout).into()
    }
}

impl Deadline {
    /// The time that is left.
    pub fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// The time that is left, as messages have it.
    pub fn left_ms(&self) -> Option<u64> {
        self.left().map(millis)
    }

    /// The same limit, or `timeout` from now on, if that ends sooner.
    pub fn at_most(self, timeout: Duration) -> Self {
        match self.left() {
            Some(left) if left <= timeout => self,
            _ => timeout.into(),
        }
    }

    /// The same limit, for a question that the provider answers at the end of it.
    pub fn for_state(self) -> Self {
        Self { grace: STATE_GRACE, ..self }
    }

    /// When the caller stops waiting for the provider.
    pub fn until<'a>(&self, wanted: Option<&'a dyn Fn() -> bool>) -> Until<'a> {
        Until { deadline: self.end.and_then(|end| end.checked_add(self.grace)), wanted }
    }

    /// Whether the time is over.
    pub fn has_passed(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// The error of a provider that has not answered.
    pub fn missed(&self, provider: &str, what: &str) -> Error {
        let within = self.seconds();
        let message = format!("{provider} did not answer within {within} s: it is stopped, or too busy to answer");
        Error::new(ErrorKind::TimedOut, message).in_field(what)
    }

    /// The whole time, in seconds, to a millisecond.
    pub fn seconds(&self) -> f64 {
        (self.timeout.unwrap_or_default().as_secs_f64() * 1000.0).round() / 1000.0
    }
}

/// A time limit as messages have it; less than a millisecond is one.
pub fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
