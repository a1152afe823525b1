//! One limit for the incomplete frames of a process, on all its connections.

use super::message::{FRAME_BYTES_MAX, FRAME_FDS_MAX};
use cotensor_core::sync::{lock, wait_timeout_while};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The longest single wait for room. A reader that waits longer checks its own time limit in between.
const ROOM_WAIT_INTERVAL: Duration = Duration::from_millis(100);
/// The budget of a server, in bytes: four of the longest frames.
const SERVER_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;
/// The budget of a server, in descriptors: two for each client of the largest daemon, at one moment.
const SERVER_FDS_MAX: usize = 2048;

/// Bytes and descriptors that the decoders of one process may hold together for incomplete frames.
///
/// A decoder takes all bytes of a long frame at once, before it reads the body, so two decoders never wait for each
/// other. Short frames use the buffer that each connection has.
pub struct FrameBudget {
    bytes_max: usize,
    fds_max: usize,
    /// Whether the process has memory for so many bytes.
    has_room: fn(usize) -> bool,
    used: Mutex<Used>,
    freed: Condvar,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    fds: usize,
}

impl FrameBudget {
    /// The budget of a server process. `has_room` says whether the process has memory for so many bytes: a long frame
    /// without it ends its connection, whereas an allocation that fails would end the process.
    pub fn of_server(has_room: fn(usize) -> bool) -> Arc<Self> {
        Self::with_room(SERVER_BYTES_MAX, SERVER_FDS_MAX, has_room)
    }

    /// A budget of `bytes_max` bytes and `fds_max` descriptors, and at least those of one frame.
    pub fn new(bytes_max: usize, fds_max: usize) -> Arc<Self> {
        Self::with_room(bytes_max, fds_max, |_| true)
    }

    fn with_room(bytes_max: usize, fds_max: usize, has_room: fn(usize) -> bool) -> Arc<Self> {
        let (bytes_max, fds_max) = (bytes_max.max(FRAME_BYTES_MAX), fds_max.max(FRAME_FDS_MAX));
        Arc::new(Self { bytes_max, fds_max, has_room, used: Mutex::default(), freed: Condvar::new() })
    }

    /// Whether the process has memory for so many bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        (self.has_room)(bytes)
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        lock(&self.used).bytes
    }

    /// Descriptors in use.
    pub fn fds(&self) -> usize {
        lock(&self.used).fds
    }

    /// Takes `bytes` bytes, after a short wait for room if `wait` is set.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, wait: bool) -> Option<BudgetShare> {
        let full = |used: &mut Used| used.bytes + bytes > self.bytes_max;
        let mut used = lock(&self.used);
        if wait {
            used = wait_timeout_while(&self.freed, used, ROOM_WAIT_INTERVAL, full);
        }
        if full(&mut used) {
            return None;
        }
        used.bytes += bytes;
        Some(BudgetShare { budget: Arc::clone(self), bytes })
    }

    /// Changes the number of descriptors that one decoder holds. False, without a change, when that exceeds the limit.
    pub(super) fn hold_fds(&self, before: usize, now: usize) -> bool {
        let mut used = lock(&self.used);
        let fits = now <= before || used.fds - before + now <= self.fds_max;
        if fits {
            used.fds = used.fds - before + now;
        }
        fits
    }
}

/// Bytes of a [`FrameBudget`], returned on drop.
pub(super) struct BudgetShare {
    budget: Arc<FrameBudget>,
    bytes: usize,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        lock(&self.budget.used).bytes -= self.bytes;
        self.budget.freed.notify_all();
    }
}
