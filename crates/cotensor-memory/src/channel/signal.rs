//! Waiting for a word of a ring to change, and waking those that wait. The kernel finds the waiting threads by the file and the place in
//! it, so a mapping for reading suffices for both.

use super::ring_words;
use crate::host::SharedWords;
use cotensor_core::{Error, Result};
use rustix::io::Errno;
use rustix::thread::futex;
use std::time::Duration;

/// Waits until the signal is not `seen` any more, a wake-up, or the end of the time. It can also return earlier.
///
/// # Errors
/// `Io`.
pub(super) fn wait(ring: &SharedWords, seen: u64, timeout: Duration) -> Result<()> {
    let limit = timeout.min(Duration::from_secs(3600));
    let limit = limit.try_into().map_err(|_| Error::invalid("a time that is too long"))?;
    // The kernel compares the low halves. A thread would have to be paused for 2^32 frames to miss one.
    match futex::wait(ring.futex(ring_words::SIGNAL), futex::Flags::empty(), seen as u32, Some(&limit)) {
        Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("waiting for a frame", &error.into())),
    }
}

/// Wakes all threads that wait.
pub(super) fn wake(ring: &SharedWords) {
    // It fails only for an address that is not mapped.
    let _ = futex::wake(ring.futex(ring_words::SIGNAL), futex::Flags::empty(), i32::MAX as u32);
}
