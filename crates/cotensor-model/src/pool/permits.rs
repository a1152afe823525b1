use cotensor_core::sync::{lock, wait_timeout_while};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How often a waiting call checks whether its caller still wants it.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Permits to run a call, a fixed number of them.
pub(super) struct Permits {
    free: Mutex<usize>,
    released: Condvar,
}

/// One permit; released on drop.
pub(super) struct Permit(Arc<Permits>);

impl Permits {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count), released: Condvar::new() })
    }

    /// Waits for a permit.
    pub(super) fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            if let Some(permit) = self.acquire_while(&|| true) {
                return permit;
            }
        }
    }

    /// Waits for a permit while `wanted` returns true; `None` afterwards.
    pub(super) fn acquire_while(self: &Arc<Self>, wanted: &dyn Fn() -> bool) -> Option<Permit> {
        loop {
            let free = lock(&self.free);
            let mut free = wait_timeout_while(&self.released, free, CHECK_INTERVAL, |free| *free == 0);
            if *free > 0 {
                *free -= 1;
                return Some(Permit(Arc::clone(self)));
            }
            // `wanted` may take locks.
            drop(free);
            if !wanted() {
                return None;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.released.notify_one();
    }
}
