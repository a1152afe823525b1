//! The end of a daemon that nobody uses.

use crate::daemon::Daemon;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Measures how long a daemon has had neither a client nor a tensor.
pub(crate) struct IdleTimer {
    limit: Option<Duration>,
    since: Option<Instant>,
    /// The number of the next session at the last check: a client may have come and gone in between.
    next_session: u64,
}

impl IdleTimer {
    /// A timer that ends after `limit`; never without one.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: None, next_session: 0 }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit.unwrap_or(Duration::MAX)
    }

    /// Whether the daemon has been idle for the limit.
    pub(crate) fn is_over(&mut self, daemon: &Daemon) -> bool {
        let Some(limit) = self.limit else { return false };
        let next_session = daemon.next_session.load(Ordering::Relaxed);
        let was_used = std::mem::replace(&mut self.next_session, next_session) != next_session;
        if was_used || daemon.is_used() {
            self.since = None;
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= limit
    }
}
