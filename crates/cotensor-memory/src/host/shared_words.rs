//! Words in memory that processes share, accessed by atomics only.

use crate::mapping::{Access, Mapping, OnFork};
use cotensor_core::{Error, Result};
use rustix::io::Errno;
use rustix::thread::futex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// The longest wait of one call.
const WAIT_MAX: Duration = Duration::from_secs(3600);

pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// A table of words in a mapping of its own.
///
/// - **X1**: the mapping starts at a page and has `count` words. All access is by the atomics below: nothing calls `bytes` or `bytes_mut`
///   of the mapping.
/// - **X2**: words of a mapping for reading are only loaded, relaxed, which the language allows on read-only memory for words of this
///   size. A fence follows where the order matters.
pub(crate) struct SharedWords {
    map: Mapping,
    count: usize,
}

impl SharedWords {
    /// Maps the first `count` words of `fd`.
    pub(crate) fn map(fd: BorrowedFd<'_>, count: usize, access: Access) -> Result<Self> {
        Ok(Self { map: Mapping::new(fd, count * WORD_BYTES, access)?, count })
    }

    /// A child that is forked later does not have the words.
    pub(crate) fn exclude_from_forks(&self) -> Result<()> {
        self.map.set_on_fork(OnFork::Exclude)
    }

    /// The number of words.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A word.
    ///
    /// # Panics
    /// For one beyond the table.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "a word beyond the table");
        // SAFETY: X1 and the check above: the word is inside the mapping, which `self` keeps, and aligned, because the mapping starts at a
        // page. Other processes access it by atomics, too. X2 holds for mappings for reading.
        unsafe { AtomicU64::from_ptr(self.map.start().as_ptr().cast::<u64>().add(index)) }
    }

    /// Waits until a word is not `seen` any more, a [`wake`](Self::wake) in any process, or the end of the time. It can also return earlier.
    /// For a shared mapping: the kernel finds the waiting threads by the file and the place in it, so one for reading suffices.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn wait(&self, index: usize, seen: u64, timeout: Duration) -> Result<()> {
        let limit = timeout.min(WAIT_MAX).try_into().map_err(|_| Error::invalid("a time that is too long"))?;
        // The kernel compares the low halves.
        match futex::wait(self.futex(index), futex::Flags::empty(), seen as u32, Some(&limit)) {
            Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("waiting for another process", &error.into())),
        }
    }

    /// Wakes all threads that wait for a word, in all processes.
    pub(crate) fn wake(&self, index: usize) {
        // It fails only for an address that is not mapped.
        let _ = futex::wake(self.futex(index), futex::Flags::empty(), i32::MAX as u32);
    }

    /// The low half of a word, for the kernel's futex alone.
    ///
    /// # Panics
    /// For one beyond the table.
    fn futex(&self, index: usize) -> &AtomicU32 {
        let low = if cfg!(target_endian = "little") { 0 } else { 1 };
        let word: *mut u64 = self.word(index).as_ptr();
        // SAFETY: one of the two aligned halves of a word as above. This process accesses it in no other way than by the kernel, which
        // compares it with a value.
        unsafe { AtomicU32::from_ptr(word.cast::<u32>().add(low)) }
    }
}
