//! The thread of a process that gives idle memory back: blocks, slabs, and memfds of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the thread runs. Clones are of one thread.
#[derive(Clone, Default)]
pub struct GiveBack(Arc<AtomicBool>);

impl GiveBack {
    /// Starts the thread, unless it runs. It calls `round` after each `interval`, until that returns false. Before it does so, `round` calls
    /// [`end`](Self::end) under the lock of the memory, so that the next use starts another thread.
    pub fn start(&self, interval: Duration, round: impl Fn() -> bool + Send + 'static) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let rounds = move || {
            std::thread::sleep(interval);
            while round() {
                std::thread::sleep(interval);
            }
        };
        if std::thread::Builder::new().name("cotensor-blocks".to_owned()).spawn(rounds).is_err() {
            // The next use tries again.
            self.end();
        }
    }

    /// Says that the thread ends: from now on another one may start.
    pub fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
