//! The producer's side of a ring and of the readers' pages.

use super::size::ChannelSize;
use super::{Entry, PRODUCER, monotonic_ns, page_words, ring_words, signal};
use crate::host::{Guarantee, SharedWords, allocate, check_no_holes, check_sealed, seal};
use crate::mapping::{Access, OnFork};
use crate::process::{LockTable, duplicate_fd, reopen_to_read};
use cotensor_core::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

/// The files of a channel, as they travel to the daemon and to readers.
#[derive(Debug)]
pub struct ChannelFiles {
    /// The memory of the frames.
    pub memory: OwnedFd,
    /// The ring.
    pub ring: OwnedFd,
    /// A page for each reader.
    pub pages: Vec<OwnedFd>,
}

impl ChannelFiles {
    /// Checks files that come from another process: their lengths, their seals, and that they have no holes.
    ///
    /// # Errors
    /// `Refused` with the reason; `Invalid` for sizes beyond the limits.
    pub fn check(&self, size: &ChannelSize) -> Result<()> {
        size.check()?;
        check_sealed(&self.memory, size.memory_bytes()?, Guarantee::ProducerOnly)?;
        check_no_holes(self.memory.as_fd(), size.memory_bytes()?)?;
        check_sealed(&self.ring, size.ring_bytes(), Guarantee::ProducerOnly)?;
        if self.pages.len() != size.readers as usize {
            let message = format!("{} pages for {} readers", self.pages.len(), size.readers);
            return Err(Error::invalid(message).in_field("readers"));
        }
        self.pages.iter().try_for_each(|page| check_sealed(page, size.page_bytes(), Guarantee::Length))
    }

    /// Copies of the descriptors.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached.
    pub fn try_clone(&self) -> Result<Self> {
        let pages = self.pages.iter().map(duplicate_fd).collect::<Result<_>>()?;
        Ok(Self { memory: duplicate_fd(&self.memory)?, ring: duplicate_fd(&self.ring)?, pages })
    }
}

/// Takes the lock of the reader that has page number `page`. None while a process has it. The caller lets no other thread do so meanwhile.
///
/// # Errors
/// `OverBudget` when the limit of descriptors is reached; `Io` where the system has no such locks.
pub fn reader_lock(ring: impl AsFd, page: u32) -> Result<Option<OwnedFd>> {
    let locks = LockTable::open(duplicate_fd(ring)?);
    let number = PRODUCER + 1 + u64::from(page);
    match locks.is_locked(number)? {
        true => Ok(None),
        false => locks.lock(number).map(Some),
    }
}

/// The page of one reader, as the producer sees it.
struct Page {
    words: SharedWords,
    fd: OwnedFd,
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
        let first = self.first_word(entry.number);
        let (of_frame, time) = (self.words.word(first), self.words.word(first + 1));
        // A reader of the former frame sees that it is gone before it sees the time of this one.
        of_frame.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        time.store(monotonic_ns(), Ordering::Relaxed);
        of_frame.store(entry.word(), Ordering::Release);
        self.words.word(ring_words::NEWEST).store(entry.number, Ordering::Release);
        self.signal();
    }

    /// Whether a reader holds a frame that is not in the ring any more. With `living`, only holds of readers that live count.
    pub(super) fn is_held(&self, entry: Entry, living: bool) -> bool {
        // After the frame was taken out of the ring, and before the pages are read.
        fence(Ordering::SeqCst);
        let holds = |page: &Page| {
            (page_words::HEADER..page.words.count())
                .any(|word| page.words.word(word).load(Ordering::Relaxed) == entry.word())
        };
        let is_held = self.pages.iter().zip(PRODUCER + 1..).any(|(page, number)| {
            // Where the system has no locks, every reader counts.
            holds(page) && (!living || self.locks.is_locked(number).unwrap_or(true))
        });
        // The reads of the reader that has ended its hold come before the next write to the frame.
        fence(Ordering::Acquire);
        is_held
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
            signal::wake(&self.words);
        }
    }

    /// The first word of the frame `number`.
    fn first_word(&self, number: u64) -> usize {
        ring_words::HEADER + (number % u64::from(self.size.slots)) as usize * ring_words::OF_FRAME
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
