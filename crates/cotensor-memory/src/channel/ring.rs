//! The producer's side of a ring and of the readers' pages.

use super::files::ChannelFiles;
use super::size::ChannelSize;
use super::{Entry, PRODUCER, lock_of, monotonic_ns, page_words, ring_words};
use crate::host::{Guarantee, SharedWords, allocate, seal};
use crate::mapping::{Access, OnFork};
use crate::process::{LockTable, duplicate_fd, reopen_to_read};
use cotensor_core::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

/// The page of one reader, as the producer sees it.
struct Page {
    words: SharedWords,
    fd: OwnedFd,
}

/// The words of frames that readers held at one time, ordered.
pub(super) struct Holds(Vec<u64>);

impl Holds {
    pub(super) fn contains(&self, entry: Entry) -> bool {
        self.0.binary_search(&entry.word()).is_ok()
    }
}

/// The ring of a producer, with the pages of all readers.
pub(super) struct Ring {
    words: SharedWords,
    size: ChannelSize,
    fd: OwnedFd,
    pages: Vec<Page>,
    locks: LockTable,
    /// The producer's lock, as long as it lives.
    _lock: OwnedFd,
}

impl Ring {
    /// A ring without frames.
    ///
    /// # Errors
    /// `OverBudget` when the system's memory or this process's descriptors do not suffice; `Io`.
    pub(super) fn create(size: ChannelSize) -> Result<Self> {
        // Forked children have no mapping that could write it.
        let (fd, _) = allocate(size.ring_bytes(), OnFork::Exclude)?;
        let words = SharedWords::map(fd.as_fd(), size.ring_word_count(), Access::Write)?;
        words.exclude_from_forks()?;
        seal(&fd, Guarantee::ProducerOnly)?;
        let locks = LockTable::open(duplicate_fd(&fd)?);
        let _lock = locks.lock(PRODUCER)?;
        let pages = (0..size.readers).map(|_| Page::create(&size)).collect::<Result<_>>()?;
        Ok(Self { words, size, fd, pages, locks, _lock })
    }

    /// The descriptors of the ring and of the pages, to send.
    pub(super) fn files(&self, memory: OwnedFd) -> Result<ChannelFiles> {
        let pages = self.pages.iter().map(|page| duplicate_fd(&page.fd)).collect::<Result<_>>()?;
        Ok(ChannelFiles { memory, ring: duplicate_fd(&self.fd)?, pages })
    }

    /// Puts a frame into the ring, in place of the oldest one there, and wakes readers that wait.
    pub(super) fn publish(&self, entry: Entry) {
        let first = self.size.ring_word_of(entry.number);
        let (of_frame, time) = (self.words.word(first), self.words.word(first + 1));
        // A reader of the former frame sees that it is gone before it sees the time of this one.
        of_frame.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        time.store(monotonic_ns(), Ordering::Relaxed);
        of_frame.store(entry.word(), Ordering::Release);
        self.words.word(ring_words::NEWEST).store(entry.number, Ordering::Release);
        self.signal();
    }

    /// The frames that readers hold, for a look at frames that are not in the ring any more. With `living`, only holds of readers that live
    /// count.
    ///
    /// Each word of a page is read once: a reader cannot hold more frames than its page has words, also when it changes them meanwhile.
    pub(super) fn holds(&self, living: bool) -> Holds {
        // After the frames were taken out of the ring, and before the pages are read.
        fence(Ordering::SeqCst);
        let mut words = Vec::new();
        for (page, number) in self.pages.iter().zip(0..) {
            let before = words.len();
            let of_page = (page_words::HEADER..page.words.count()).map(|word| page.words.word(word));
            words.extend(of_page.map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0));
            // Where the system has no locks, every reader counts.
            if living && words.len() > before && !self.locks.is_locked(lock_of(number)).unwrap_or(true) {
                words.truncate(before);
            }
        }
        // The reads of a reader that has ended its hold come before the next write to the frame.
        fence(Ordering::Acquire);
        words.sort_unstable();
        Holds(words)
    }

    /// Tells readers that no frame will follow.
    pub(super) fn close(&self) {
        self.words.word(ring_words::CLOSED).store(1, Ordering::Release);
        self.signal();
    }

    fn signal(&self) {
        let signal = self.words.word(ring_words::SIGNAL);
        // No other thread writes it.
        signal.store(signal.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // A reader announces that it waits, and then looks at the signal.
        fence(Ordering::SeqCst);
        if self.pages.iter().any(|page| page.words.word(page_words::WAITING).load(Ordering::Relaxed) > 0) {
            self.words.wake(ring_words::SIGNAL);
        }
    }
}

impl Page {
    fn create(size: &ChannelSize) -> Result<Self> {
        let (fd, _) = allocate(size.page_bytes(), OnFork::Exclude)?;
        seal(&fd, Guarantee::Length)?;
        let words = SharedWords::map(reopen_to_read(&fd)?.as_fd(), size.page_word_count(), Access::ReadShared)?;
        Ok(Self { words, fd })
    }
}
