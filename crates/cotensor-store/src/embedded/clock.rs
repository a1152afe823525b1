use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where the store's ages and recencies come from.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// The same, as of a few milliseconds ago at most: what lookups note, for which [`now`](Clock::now) would take as
    /// long as the lookup.
    fn recent(&self) -> Duration {
        self.now()
    }
}

/// The system's monotonic clock; on wasm32, which has none here, a counter of its readings.
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

    /// The kernel's monotonic clock, and its value at the last tick.
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
        // Both fields count up from the start of the machine.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_recent_is_neither_ahead_nor_far_behind() {
        let clock = SystemClock::default();
        for _ in 0..1000 {
            let recent = clock.recent();
            let now = clock.now();
            assert!(recent <= now && clock.now() >= now, "{recent:?} {now:?}");
        }
        let before = clock.recent();
        std::thread::sleep(Duration::from_millis(100));
        assert!(clock.recent() > before);
    }
}
