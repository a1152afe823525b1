//! A reader's end of a ring.

use super::size::ChannelSize;
use super::{Entry, PRODUCER, monotonic_ns, page_words, ring_words};
use crate::host::{Guarantee, SharedWords, check_sealed};
use crate::mapping::Access;
use crate::process::{LockTable, duplicate_fd, reopen_to_read, unlock};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Attempts to hold a frame of a producer that replaces the frames of the ring meanwhile.
const ATTEMPTS_MAX: usize = 1000;
/// The interval between wake-ups of threads that shall not wait any more.
const LEAVE_INTERVAL: Duration = Duration::from_micros(50);

/// Which frames a reader takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The newest one. Older ones are skipped.
    #[default]
    Newest,
    /// Each one in order, as long as the ring has it.
    Queue,
}

/// A reader's end of a ring.
pub struct RingReader {
    words: SharedWords,
    page: SharedWords,
    size: ChannelSize,
    locks: LockTable,
    /// The words of the page that hold nothing.
    free: Mutex<Vec<usize>>,
    /// The threads of this process that wait.
    waiters: AtomicUsize,
    is_left: AtomicBool,
    /// This reader's lock, as long as it or a hold exists.
    lock: OwnedFd,
    /// A forked child has this page, too, and leaves it alone.
    owner: u32,
}

/// A frame that a reader holds: its memory is not written again until this is dropped.
pub struct FrameHold {
    entry: Entry,
    published_ns: u64,
    word: usize,
    reader: Arc<RingReader>,
}

impl RingReader {
    /// Opens the ring of another process. `page` is this reader's alone, and `lock` is its lock, which it has from
    /// [`reader_lock`](super::reader_lock).
    ///
    /// # Errors
    /// `Refused` for files that are not those of a channel of this size, `Io` when they cannot be mapped.
    pub fn open(ring: OwnedFd, page: OwnedFd, lock: OwnedFd, size: ChannelSize) -> Result<Arc<Self>> {
        size.check()?;
        check_sealed(&ring, size.ring_bytes(), Guarantee::ProducerOnly)?;
        check_sealed(&page, size.page_bytes(), Guarantee::Length)?;
        let words = SharedWords::map(reopen_to_read(&ring)?.as_fd(), size.ring_word_count(), Access::ReadShared)?;
        let page = SharedWords::map(page.as_fd(), size.page_word_count(), Access::Write)?;
        // It may have been that of a reader that was killed.
        (0..page.count()).for_each(|word| page.word(word).store(0, Ordering::Release));
        let free = Mutex::new((page_words::HEADER..page.count()).collect());
        let (locks, owner) = (LockTable::open(duplicate_fd(&ring)?), std::process::id());
        let (waiters, is_left) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Arc::new(Self { words, page, size, locks, free, waiters, is_left, lock, owner }))
    }

    /// The number of the newest frame; 0 before the first one.
    pub fn newest(&self) -> u64 {
        let newest = self.words.word(ring_words::NEWEST).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        newest
    }

    /// The number of the frame before the first that a new reader takes.
    pub fn start(&self, policy: Policy) -> u64 {
        let back = match policy {
            Policy::Newest => 1,
            Policy::Queue => u64::from(self.size.slots),
        };
        self.newest().saturating_sub(back)
    }

    /// Takes a frame after number `last`. None while there is none, and when the producer publishes faster than this thread runs: then the
    /// [`signal`](Self::signal) has changed.
    ///
    /// # Errors
    /// `OverBudget` when this reader holds as many frames as it may; `Conflict` in a forked child.
    pub fn take(self: &Arc<Self>, policy: Policy, last: u64) -> Result<Option<FrameHold>> {
        if !self.is_ours() {
            return Err(Error::new(ErrorKind::Conflict, "this reader belongs to the parent process"));
        }
        let mut first = last.saturating_add(1);
        for _ in 0..ATTEMPTS_MAX {
            let newest = self.newest();
            if newest < first {
                break;
            }
            let wanted = match policy {
                Policy::Newest => newest,
                Policy::Queue => first.max(newest.saturating_add(1).saturating_sub(u64::from(self.size.slots))),
            };
            if let Some(hold) = self.hold(wanted)? {
                return Ok(Some(hold));
            }
            // The producer takes a frame out of the ring before it tells the number of the next one. It may be stopped in between.
            first = wanted.saturating_add(1);
        }
        Ok(None)
    }

    /// Holds the frame `number`. None when the ring does not have it any more.
    fn hold(self: &Arc<Self>, number: u64) -> Result<Option<FrameHold>> {
        let first = self.size.ring_word_of(number);
        let of_frame = self.words.word(first);
        let Some(entry) = Entry::of(of_frame.load(Ordering::Relaxed)).filter(|entry| entry.number == number) else {
            return Ok(None);
        };
        let full = || {
            let message =
                format!("this reader holds {} frames, the most: drop one, or copy it and drop it", self.size.holds);
            Error::new(ErrorKind::OverBudget, message)
        };
        let word = lock(&self.free).pop().ok_or_else(full)?;
        let mut hold = FrameHold { entry, published_ns: 0, word, reader: Arc::clone(self) };
        self.page.word(word).store(entry.word(), Ordering::Relaxed);
        // The hold is written before the ring is read again.
        fence(Ordering::SeqCst);
        hold.published_ns = self.words.word(first + 1).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_there = of_frame.load(Ordering::Relaxed) == entry.word();
        fence(Ordering::Acquire);
        // The producer is another process: its numbers are checked.
        let is_inside = usize::from(entry.slot) < self.size.frames();
        Ok((is_there && is_inside).then_some(hold))
    }

    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Whether the producer has closed the channel.
    pub fn is_closed(&self) -> bool {
        self.words.word(ring_words::CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Whether the producer may still publish: it lives, and has not closed the channel.
    pub fn is_open(&self) -> bool {
        // Where the system has no locks, only a closed channel ends.
        !self.is_closed() && self.locks.is_locked(PRODUCER).unwrap_or(true)
    }

    /// A number that changes after each frame and when the channel is closed: for [`wait`](Self::wait), read before a frame is looked for.
    pub fn signal(&self) -> u64 {
        let signal = self.words.word(ring_words::SIGNAL).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        signal
    }

    /// Waits until the signal is not `seen` any more, until this reader is left, or for `timeout`. It can also return earlier.
    ///
    /// # Errors
    /// `Io`.
    pub fn wait(&self, seen: u64, timeout: Duration) -> Result<()> {
        let waiting = self.page.word(page_words::WAITING);
        self.waiters.fetch_add(1, Ordering::SeqCst);
        waiting.fetch_add(1, Ordering::Relaxed);
        // The wait is announced before the kernel reads the signal.
        fence(Ordering::SeqCst);
        let outcome = if self.is_left() { Ok(()) } else { self.words.wait(ring_words::SIGNAL, seen, timeout) };
        waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// Ends the waits of all threads of this process, also later ones.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
        while self.is_ours() && self.waiters.load(Ordering::SeqCst) > 0 {
            // A thread may be on its way into the kernel.
            self.words.wake(ring_words::SIGNAL);
            std::thread::sleep(LEAVE_INTERVAL);
        }
    }

    /// Whether this reader was left.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        if self.is_ours() {
            // A forked child may have the descriptor for long. If it cannot be unlocked, the page is free with that child's end.
            let _ = unlock(&self.lock);
        }
    }
}

impl FrameHold {
    /// The frame's number. The first one of a channel is 1.
    pub fn number(&self) -> u64 {
        self.entry.number
    }

    /// The bytes of the frame in the memory of the channel.
    pub fn range(&self) -> Range<usize> {
        let start = usize::from(self.entry.slot) * self.reader.size.stride();
        start..start + self.reader.size.frame_bytes
    }

    /// Leaves the hold in the page, as the end of the process does.
    #[cfg(test)]
    pub(super) fn abandon(self) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is read once and never dropped.
        drop(unsafe { std::ptr::read(&this.reader) });
    }

    /// The time since the frame was published.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.published_ns))
    }
}

impl Drop for FrameHold {
    fn drop(&mut self) {
        if self.reader.is_ours() {
            self.reader.page.word(self.word).store(0, Ordering::Release);
            lock(&self.reader.free).push(self.word);
        }
    }
}
