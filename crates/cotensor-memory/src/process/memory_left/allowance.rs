//! How many bytes may be allocated before the memory that is left is read again.

use std::time::{Duration, Instant};

/// A reading is valid for this part of the memory that was left: other processes may use the rest meanwhile.
const DIVISOR: u64 = 16;
/// How long a reading is valid.
const VALID: Duration = Duration::from_millis(100);

/// The rest of the last reading. Small allocations use it up, instead of reading several files each.
#[derive(Debug)]
pub(super) struct Allowance {
    bytes: u64,
    read_at: Option<Instant>,
}

impl Allowance {
    /// The state before the first reading.
    pub(super) const NONE: Self = Self { bytes: 0, read_at: None };

    /// Whether `len` bytes are within the allowance, which they use up.
    pub(super) fn take(&mut self, len: u64, now: Instant) -> bool {
        let valid = self.read_at.is_some_and(|at| now.saturating_duration_since(at) < VALID);
        let within = valid && len <= self.bytes;
        if within {
            self.bytes -= len;
        }
        within
    }

    /// Begins a new allowance after a reading: `left` bytes.
    pub(super) fn renew(&mut self, left: u64, now: Instant) {
        *self = Self { bytes: left / DIVISOR, read_at: Some(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_used_up_by_bytes_and_by_time() {
        let (mut allowance, now) = (Allowance::NONE, Instant::now());
        assert!(!allowance.take(0, now), "nothing was read yet");
        allowance.renew(160, now);
        assert!(allowance.take(6, now) && !allowance.take(5, now) && allowance.take(4, now) && !allowance.take(1, now));
        allowance.renew(160, now);
        assert!(!allowance.take(1, now + VALID));
        allowance.renew(160, now + VALID);
        assert!(allowance.take(1, now), "a clock of another thread may be behind");
    }
}
