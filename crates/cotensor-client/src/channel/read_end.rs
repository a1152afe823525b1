//! Waiting for a frame while the producer lives.

use super::ChannelSpec;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::RingReader;
use cotensor_memory::process::is_alive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reader sleeps before it checks whether the producer lives. The daemon wakes it earlier.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// The same after it was woken without a frame: the producer may be ending.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// What waiting for a frame takes.
pub(super) struct ReadEnd {
    pub(super) ring: Arc<RingReader>,
    pub(super) spec: ChannelSpec,
    /// The producer's name and process, for messages.
    pub(super) client: String,
    pub(super) pid: Option<u32>,
}

impl ReadEnd {
    /// Whether the producer may still publish.
    ///
    /// # Errors
    /// `Io` when it has ended without closing the channel.
    pub(super) fn is_open(&self) -> Result<bool> {
        // A child of a dead producer has its lock.
        if self.ring.is_open() && self.pid.is_none_or(is_alive) {
            return Ok(true);
        }
        if self.ring.is_closed() {
            return Ok(false);
        }
        let message =
            format!("the producer of channel {:?}, {}, has ended without closing it", self.spec.name, self.client);
        Err(Error::new(ErrorKind::Io, message))
    }
}

/// The time until the next check whether the producer lives.
pub(super) struct CheckInterval(Duration);

impl Default for CheckInterval {
    fn default() -> Self {
        Self(CHECK_INTERVAL_MAX)
    }
}

impl CheckInterval {
    /// Waits until the signal is not `seen` any more, at most for `limit`.
    pub(super) fn wait(&mut self, ring: &RingReader, seen: u64, limit: Duration) -> Result<()> {
        let start = Instant::now();
        ring.wait(seen, self.0.min(limit))?;
        self.0 = if start.elapsed() < self.0 {
            // The daemon sees the end of a connection before the kernel has released all locks of its process.
            CHECK_INTERVAL_MIN
        } else {
            (self.0 * 2).min(CHECK_INTERVAL_MAX)
        };
        Ok(())
    }
}
