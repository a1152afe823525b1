//! Clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The source of the store's ages and last uses.
pub trait Clock: Send + Sync {
    /// Time since a fixed moment. Monotonic.
    fn now(&self) -> Duration;

    /// The time a few milliseconds ago at most. Lookups use it, because reading the exact clock takes as long as a
    /// lookup.
    fn recent(&self) -> Duration {
        self.now()
    }
}

/// The monotonic clock of the system; on wasm32, which has none here, a counter of its readings.
#[derive(Debug)]
pub struct SystemClock(system::Source);

impl Default for SystemClock {
    fn default() -> Self {
        Self(system::Source::start())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn recent(&self) -> Duration {
        self.0.recent()
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    /// `CLOCK_MONOTONIC`, and `CLOCK_MONOTONIC_COARSE`, which has the resolution of the timer tick.
    #[derive(Debug)]
    pub(super) struct Source;

    impl Source {
        pub(super) fn start() -> Self {
            Self
        }

        pub(super) fn now(&self) -> Duration {
            read(ClockId::Monotonic)
        }

        pub(super) fn recent(&self) -> Duration {
            read(ClockId::MonotonicCoarse)
        }
    }

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        // Both fields are positive: the clock starts at boot.
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

#[cfg(all(not(target_os = "linux"), not(target_family = "wasm")))]
mod system {
    use std::time::{Duration, Instant};

    #[derive(Debug)]
    pub(super) struct Source(Instant);

    impl Source {
        pub(super) fn start() -> Self {
            Self(Instant::now())
        }

        pub(super) fn now(&self) -> Duration {
            self.0.elapsed()
        }

        pub(super) fn recent(&self) -> Duration {
            self.now()
        }
    }
}

#[cfg(target_family = "wasm")]
mod system {
    //! Clocks.

    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[derive(Debug)]
    pub(super) struct Source(AtomicU64);

    impl Source {
        pub(super) fn start() -> Self {
            Self(AtomicU64::new(0))
        }

        pub(super) fn now(&self) -> Duration {
            Duration::from_nanos(self.0.fetch_add(1, Ordering::Relaxed))
        }

        pub(super) fn recent(&self) -> Duration {
            self.now()
        }
    }
}

/// A clock that a test sets.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn recent_time_is_never_ahead_and_advances() {
        let clock = SystemClock::default();
        for _ in 0..1000 {
            let recent = clock.recent();
            let now = clock.now();
            assert!(recent <= now && clock.now() >= now, "{recent:?} {now:?}");
        }
        let before = clock.recent();
        while clock.recent() == before {
            std::thread::yield_now();
        }
    }
}
