//! Limits the log lines about refusals to one per second: clients can cause many.

use cotensor_core::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The least time between two lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Counts refusals of one kind between lines.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the last line was written.
    last: Option<Instant>,
    /// Refusals since then.
    count: u64,
}

impl LogThrottle {
    /// Counts a refusal. Returns the number of refusals since the last line if a line is due.
    pub(crate) fn note(&self) -> Option<u64> {
        self.note_at(Instant::now())
    }

    fn note_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        state.count += 1;
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_once_per_second() {
        let refusals = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(refusals.note_at(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.note_at(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(refusals.note_at(start + LOG_INTERVAL), Some(1001));
        assert_eq!(refusals.note_at(start + 3 * LOG_INTERVAL), Some(1));
    }
}
