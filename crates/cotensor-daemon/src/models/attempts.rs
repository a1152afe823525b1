//! The delay between starts of a process that fails.

use cotensor_core::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

/// A process that served for this long did not fail at its start.
const STABLE_UPTIME: Duration = Duration::from_secs(10);
/// The delay after the second failure in a row. It doubles with each further one.
const DELAY_MIN: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The failures in a row.
#[derive(Default)]
pub(super) struct Attempts {
    failures: u32,
    /// The time before which no process is started.
    not_before: Option<Instant>,
}

impl Attempts {
    /// Checks that a process may be started now.
    ///
    /// # Errors
    /// `Unreachable` before the end of the delay.
    pub(super) fn check(&self, now: Instant) -> Result<()> {
        match self.not_before.filter(|until| *until > now) {
            None => Ok(()),
            Some(until) => {
                let message = format!(
                    "the model process failed {} times in a row, and is started again at the next request after {} ms; \
                     the daemon's log has the reason",
                    self.failures,
                    until.duration_since(now).as_millis().max(1)
                );
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        }
    }

    /// A process has ended after it served for `uptime`; zero if it did not start.
    pub(super) fn ended(&mut self, uptime: Duration, now: Instant) {
        let stable = uptime >= STABLE_UPTIME;
        self.failures = if stable { 0 } else { self.failures + 1 };
        // The first failure may be a kill; the next start follows at once.
        let doublings = self.failures.saturating_sub(2).min(16);
        let delay = DELAY_MIN.saturating_mul(1 << doublings).min(DELAY_MAX);
        self.not_before = (self.failures >= 2).then(|| now + delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_with_each_failure_and_ends_after_a_stable_process() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..9 {
            attempts.ended(Duration::ZERO, now);
            let waits = |delay: u64| attempts.check(now + Duration::from_millis(delay)).is_err();
            delays.push((0..=10_000).step_by(250).find(|delay| !waits(*delay)).unwrap());
        }
        assert_eq!(delays, [0, 250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(attempts.check(now).unwrap_err().kind(), ErrorKind::Unreachable);
        attempts.ended(STABLE_UPTIME, now);
        attempts.check(now).unwrap();
    }
}
