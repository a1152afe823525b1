//! Busy-polling: a short poll before a thread sleeps. Most answers arrive sooner than a sleeping thread wakes.

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// After `n` failed polls in a row, this many waits sleep at once: 0, 2, 6, 14 and so on, up to this power of two.
///
/// The first failure skips nothing: calls that alternate between two processes have a pause before each. A skipped poll
/// would make the other end wait longer and sleep too, and neither end would become fast again.
const SKIPPED_LOG_MAX: u32 = 8;
/// After this time, a poll yields the processor between two attempts.
const YIELD_AFTER: Duration = Duration::from_micros(100);
/// A yield that takes longer shows that the thread shares its core, probably with its peer. The scheduler can leave two
/// processes that wake each other on one core for 10 ms and more while another core is idle.
const SHARED_CORE_YIELD: Duration = Duration::from_micros(10);

/// Decides when to busy-poll: as long as it succeeds, and now and then after it failed.
pub struct BusyPoll {
    duration: Duration,
    failures: u32,
    skip: u32,
    /// On a single core, the peer cannot run meanwhile.
    single_core: bool,
    /// Whether the thread was descheduled on its last yield. It then yields at once.
    shares_core: bool,
}

impl BusyPoll {
    /// Polls for `duration` at most: about the time that falling asleep and waking take.
    pub fn new(duration: Duration) -> Self {
        let single_core = available_parallelism().is_ok_and(|cores| cores == NonZero::<usize>::MIN);
        Self { duration, failures: 0, skip: 0, single_core, shares_core: false }
    }

    /// Calls `attempt` until it succeeds or the time is over. None after a failure, and for a skipped poll.
    pub fn poll<T>(&mut self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if self.single_core || self.skip > 0 {
            self.skip = self.skip.saturating_sub(1);
            return None;
        }
        let start = Instant::now();
        let found = loop {
            let found = attempt();
            let polled = start.elapsed();
            if found.is_some() || polled > self.duration {
                break found;
            }
            if self.shares_core || polled > YIELD_AFTER {
                std::thread::yield_now();
                self.shares_core = start.elapsed().saturating_sub(polled) > SHARED_CORE_YIELD;
            } else {
                std::hint::spin_loop();
            }
        };
        self.failures = if found.is_some() { 0 } else { (self.failures + 1).min(SKIPPED_LOG_MAX) };
        self.skip = (1_u32 << self.failures).saturating_sub(2);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_poll_continues_while_it_succeeds_and_skips_after_failures() {
        // So long that being descheduled does not matter.
        let duration = Duration::from_secs(60);
        let mut poll = BusyPoll { duration, failures: 0, skip: 0, single_core: false, shares_core: false };
        let mut attempts = 0;
        for _ in 0..100 {
            let found = poll.poll(|| {
                attempts += 1;
                (attempts % 2 == 0).then_some(attempts)
            });
            assert_eq!(found, Some(attempts), "the second attempt succeeds");
        }
        poll.duration = Duration::ZERO;
        let mut polled = 0;
        for _ in 0..10_000 {
            let mut now = 0;
            assert_eq!(
                poll.poll(|| {
                    now += 1;
                    None::<()>
                }),
                None
            );
            polled += u32::from(now > 0);
        }
        assert!((SKIPPED_LOG_MAX..60).contains(&polled), "{polled} of 10000");
        assert_eq!(BusyPoll { single_core: true, skip: 0, ..poll }.poll(|| Some(())), None);
    }
}
