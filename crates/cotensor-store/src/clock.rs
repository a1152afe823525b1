use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where the store's ages and recencies come from.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock; on wasm32, which has none here, a counter of its readings.
#[derive(Debug)]
pub struct SystemClock {
    #[cfg(not(target_family = "wasm"))]
    start: std::time::Instant,
    #[cfg(target_family = "wasm")]
    readings: AtomicU64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            #[cfg(not(target_family = "wasm"))]
            start: std::time::Instant::now(),
            #[cfg(target_family = "wasm")]
            readings: AtomicU64::new(0),
        }
    }
}

impl Clock for SystemClock {
    #[cfg(not(target_family = "wasm"))]
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    #[cfg(target_family = "wasm")]
    fn now(&self) -> Duration {
        Duration::from_nanos(self.readings.fetch_add(1, Ordering::Relaxed))
    }
}

/// A clock that a test moves.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}
