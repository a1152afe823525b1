//! One bound for all frames that a process reads at a time, on however many connections.

use super::decoder::{FRAME_BYTES_MAX, FRAME_FDS_MAX};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one call waits for room; longer waits are several, between which the reader looks at the time.
const WAIT: Duration = Duration::from_millis(100);

/// Bytes and descriptors that the decoders of one process may hold together, for frames of which a part has come.
///
/// A decoder takes the bytes of a long frame at once, before it reads the body, so that two of them never wait for each other.
/// Short frames are read into a buffer that each connection has.
pub struct FrameRoom {
    bytes_max: usize,
    fds_max: usize,
    used: Mutex<Used>,
    freed: Condvar,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    fds: usize,
}

/// The room of a process that serves others, in bytes: four of the longest frames.
const BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;
/// The same in descriptors: two for each of as many clients as a daemon has, at one moment.
const FDS_MAX: usize = 2048;

impl FrameRoom {
    /// The room of a process that serves others.
    pub fn of_server() -> Arc<Self> {
        Self::new(BYTES_MAX, FDS_MAX)
    }

    /// Room for so many bytes and descriptors; at least for those of one frame.
    pub fn new(bytes_max: usize, fds_max: usize) -> Arc<Self> {
        let (bytes_max, fds_max) = (bytes_max.max(FRAME_BYTES_MAX), fds_max.max(FRAME_FDS_MAX));
        Arc::new(Self { bytes_max, fds_max, used: Mutex::default(), freed: Condvar::new() })
    }

    /// Bytes that are taken.
    pub fn bytes(&self) -> usize {
        self.used().bytes
    }

    /// Descriptors that are taken.
    pub fn fds(&self) -> usize {
        self.used().fds
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` bytes; where that is to `wait`, for a moment.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, wait: bool) -> Option<BytesTaken> {
        let full = |used: &mut Used| used.bytes + bytes > self.bytes_max;
        let mut used = self.used();
        if wait {
            used = self.freed.wait_timeout_while(used, WAIT, full).unwrap_or_else(PoisonError::into_inner).0;
        }
        if full(&mut used) {
            return None;
        }
        used.bytes += bytes;
        Some(BytesTaken { room: Arc::clone(self), bytes })
    }

    /// A decoder holds `now` descriptors where it held `before`; false, and no change, where that is too many.
    pub(super) fn hold_fds(&self, before: usize, now: usize) -> bool {
        let mut used = self.used();
        let fits = now <= before || used.fds - before + now <= self.fds_max;
        if fits {
            used.fds = used.fds - before + now;
        }
        fits
    }
}

/// Bytes of a [`FrameRoom`], given back on drop.
pub(super) struct BytesTaken {
    room: Arc<FrameRoom>,
    bytes: usize,
}

impl Drop for BytesTaken {
    fn drop(&mut self) {
        self.room.used().bytes -= self.bytes;
        self.room.freed.notify_all();
    }
}
