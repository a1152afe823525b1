//! Waiting for changes of names on a thread.

use super::ChangesFuture;
use crate::NameChanges;
use std::time::Duration;

impl ChangesFuture {
    /// Polls on this thread until the changes are there or the wait ends: after `wait`, or when `keep_waiting` returns false.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn block_on(mut self, wait: Duration, keep_waiting: &dyn Fn() -> bool) -> NameChanges {
        use std::future::Future;
        use std::pin::Pin;
        use std::sync::Arc;
        use std::task::{Context, Poll, Wake};
        use std::thread::Thread;
        use std::time::Instant;

        /// The longest time between two calls of `keep_waiting`.
        const CHECK_INTERVAL: Duration = Duration::from_millis(50);

        struct Unpark(Thread);

        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }

        let waker = Arc::new(Unpark(std::thread::current())).into();
        let end = Instant::now().checked_add(wait);
        loop {
            if let Poll::Ready(changes) = Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
                return changes;
            }
            let left = end.map_or(CHECK_INTERVAL, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() || !keep_waiting() {
                return self.nothing();
            }
            std::thread::park_timeout(left.min(CHECK_INTERVAL));
        }
    }

    /// With one thread, nothing changes during a wait.
    #[cfg(target_family = "wasm")]
    pub(crate) fn block_on(mut self, _: Duration, _: &dyn Fn() -> bool) -> NameChanges {
        use std::future::Future;
        use std::pin::Pin;
        use std::task::{Context, Poll, Waker};
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(changes) => changes,
            Poll::Pending => self.nothing(),
        }
    }
}
