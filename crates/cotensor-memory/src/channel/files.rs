//! The files of a channel, for the process that passes them on: it maps no frame.

use super::size::ChannelSize;
use super::{PRODUCER, lock_of, ring_words};
use crate::host::{Guarantee, SharedWords, WORD_BYTES, check_no_holes, check_sealed};
use crate::mapping::Access;
use crate::process::{LockTable, duplicate_fd, reopen_to_read};
use cotensor_core::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};

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
        let check = |fd: &OwnedFd, bytes, guarantee| {
            check_sealed(fd, bytes, guarantee).and_then(|()| check_no_holes(fd.as_fd(), bytes))
        };
        check(&self.memory, size.memory_bytes()?, Guarantee::ProducerOnly)?;
        check(&self.ring, size.ring_bytes(), Guarantee::ProducerOnly)?;
        if self.pages.len() != size.readers as usize {
            let message = format!("{} pages for {} readers", self.pages.len(), size.readers);
            return Err(Error::invalid(message).in_field("readers"));
        }
        self.pages.iter().try_for_each(|page| check(page, size.page_bytes(), Guarantee::Length))
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
    let number = lock_of(page);
    if locks.is_locked(number)? { Ok(None) } else { locks.lock(number).map(Some) }
}

/// Whether a process has the lock of the reader that has page number `page`. True where the system has no locks.
pub fn is_page_taken(ring: impl AsFd, page: u32) -> bool {
    is_locked(ring, lock_of(page))
}

/// Whether the producer of the channel with this ring may still publish: it lives, and has not closed the channel.
pub fn is_ring_open(ring: impl AsFd) -> bool {
    !is_ring_closed(&ring) && is_locked(ring, PRODUCER)
}

/// Whether the producer of the channel with this ring has closed it.
pub fn is_ring_closed(ring: impl AsFd) -> bool {
    read_word(ring, ring_words::CLOSED).is_ok_and(|word| word != 0)
}

fn is_locked(ring: impl AsFd, number: u64) -> bool {
    duplicate_fd(ring).and_then(|ring| LockTable::open(ring).is_locked(number)).unwrap_or(true)
}

/// The number of frames that were published in the channel with this ring.
///
/// # Errors
/// `Io` when the ring cannot be read.
pub fn frame_count(ring: impl AsFd) -> Result<u64> {
    read_word(ring, ring_words::NEWEST)
}

fn read_word(ring: impl AsFd, index: usize) -> Result<u64> {
    let mut word = [0; WORD_BYTES];
    let read = rustix::io::pread(ring, &mut word, (index * WORD_BYTES) as u64);
    read.map_err(|error| Error::io("reading a ring", &error.into()))?;
    Ok(u64::from_ne_bytes(word))
}

/// Wakes the readers of the channel with this ring, which then look whether its producer lives: for the process that sees the producer's
/// end.
///
/// # Errors
/// `Io` when the ring cannot be mapped.
pub fn wake_readers(ring: impl AsFd) -> Result<()> {
    let ring = reopen_to_read(ring)?;
    SharedWords::map(ring.as_fd(), ring_words::HEADER, Access::ReadShared)?.wake(ring_words::SIGNAL);
    Ok(())
}
