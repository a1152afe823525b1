//! The end of a daemon without clients.

use crate::daemon::Daemon;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Measures how long a daemon has had neither a client nor a tensor.
pub(crate) struct IdleTimer {
    limit: Option<Duration>,
    since: Option<Instant>,
    /// The number of the next session and of requests to models at the last check: a client may have come and gone in
    /// between.
    counts: (u64, u64),
}

impl IdleTimer {
    /// A timer that ends after `limit`. Without a limit it never ends.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: None, counts: (0, 0) }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit.unwrap_or(Duration::MAX)
    }

    /// Whether the daemon has been idle for the limit.
    pub(crate) fn is_over(&mut self, daemon: &Daemon) -> bool {
        let Some(limit) = self.limit else { return false };
        let counts = (daemon.next_session.load(Ordering::Relaxed), daemon.models.requests());
        let was_used = std::mem::replace(&mut self.counts, counts) != counts;
        if was_used || daemon.is_used() {
            self.since = None;
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= limit
    }
}
