//! A wait that is reported on standard error.

use crate::output::{printable, report};
use std::time::{Duration, Instant};

/// A wait that takes longer is reported once.
pub(crate) const REPORT_AFTER: Duration = Duration::from_secs(2);

/// A wait that began when this was made.
pub(crate) struct Waiting {
    since: Instant,
    reported: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { since: Instant::now(), reported: false }
    }
}

impl Waiting {
    /// Reports for what and for whom the command waits, once the wait takes long. Returns the time after which to call this
    /// again.
    pub(crate) fn report(&mut self, text: impl FnOnce() -> String) -> Duration {
        let waited = self.since.elapsed();
        if waited >= REPORT_AFTER && !std::mem::replace(&mut self.reported, true) {
            report(&printable(&text()));
        }
        if self.reported { Duration::MAX } else { REPORT_AFTER - waited.min(REPORT_AFTER) }
    }
}
