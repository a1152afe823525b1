//! The thread of a caller that gives blocks back. A provider's timer does that for all its callers.

use crate::threads::spawn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the thread runs. Clones are of one thread.
#[derive(Clone, Default)]
pub(super) struct GiveBack(Arc<AtomicBool>);

impl GiveBack {
    /// Starts the thread, unless it runs. It calls `round` after each `interval`, until that returns false.
    pub(super) fn start(&self, interval: Duration, round: impl Fn() -> bool + Send + 'static) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let rounds = move || {
            std::thread::sleep(interval);
            while round() {
                std::thread::sleep(interval);
            }
        };
        if spawn("cotensor-blocks", rounds).is_err() {
            // The next block tries again.
            self.end();
        }
    }

    /// Says that the thread ends: from now on another one may start.
    pub(super) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
