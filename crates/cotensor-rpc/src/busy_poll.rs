//! Looking again and again for a moment before sleeping: most answers come sooner than a thread that sleeps is woken.

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// After failures in a row, so many waits are slept through: none, 2, 6, 14, and so on, up to this power of two. The first
/// costs nothing, because what comes in turns has a pause before each: were the next wait slept through, the other end
/// would wait longer for it, sleep too, and neither would be fast again.
const SKIPPED_LOG_MAX: u32 = 8;
/// Who looks for longer than this lets others run between two looks.
const GREEDY: Duration = Duration::from_micros(50);
/// Who lets others run and is back only after longer than this shared its core: most likely with whom it waits for. The
/// scheduler leaves two processes that wake each other on one core for ten milliseconds and more while another is idle.
const AWAY: Duration = Duration::from_micros(10);

/// When to spin: as long as it pays, and after it has not, now and then to see whether it does again.
pub struct Spin {
    /// How long.
    moment: Duration,
    failures: u32,
    skip: u32,
    /// On one core, whoever is waited for would have to wait.
    alone: bool,
    /// Whether this thread shared its core when it last let others run: then it does so at once.
    together: bool,
}

impl Spin {
    /// Looks for `moment` at the most: what falling asleep and being woken take, or a little longer.
    pub fn new(moment: Duration) -> Self {
        let alone = available_parallelism().is_ok_and(|cores| cores == NonZero::<usize>::MIN);
        Self { moment, failures: 0, skip: 0, alone, together: false }
    }

    /// What `look` finds within a moment; `None` when it finds nothing, or was not asked.
    pub fn until_found<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.alone || self.skip > 0 {
            self.skip = self.skip.saturating_sub(1);
            return None;
        }
        let start = Instant::now();
        let found = loop {
            let found = look();
            let looked = start.elapsed();
            if found.is_some() || looked > self.moment {
                break found;
            }
            if self.together || looked > GREEDY {
                std::thread::yield_now();
                self.together = start.elapsed().saturating_sub(looked) > AWAY;
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
    fn it_looks_for_as_long_as_that_pays() {
        // So long that being kept from running does not matter.
        let moment = Duration::from_secs(60);
        let mut spin = Spin { moment, failures: 0, skip: 0, alone: false, together: false };
        let mut looks = 0;
        for _ in 0..100 {
            let found = spin.until_found(|| {
                looks += 1;
                (looks % 2 == 0).then_some(looks)
            });
            assert_eq!(found, Some(looks), "the second look");
        }
        spin.moment = Duration::ZERO;
        let mut asked = 0;
        for _ in 0..10_000 {
            let mut now = 0;
            assert_eq!(
                spin.until_found(|| {
                    now += 1;
                    None::<()>
                }),
                None
            );
            asked += u32::from(now > 0);
        }
        assert!((SKIPPED_LOG_MAX..60).contains(&asked), "{asked} of 10000");
        assert_eq!(Spin { moment, failures: 0, skip: 0, alone: true, together: false }.until_found(|| Some(())), None);
    }
}
