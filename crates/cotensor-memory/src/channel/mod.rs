//! Channels: frames that one process writes again and again into the same memory, and that others read without a copy.
//!
//! ```text
//! memory   slots for frames: a slab of the producer
//! ring     the newest frames, as numbers of their slots; the producer writes it
//! page     the frames that one reader holds; that reader writes it. One page for each reader
//! ```
//!
//! A reader *holds* a frame: it writes the frame's entry into its page, and then looks whether the ring still has that entry. The producer
//! first takes a frame out of the ring, and then looks for it in all pages. Each side writes before it reads, with a fence in between, so
//! the producer sees the hold, or the reader sees that the entry is gone: a frame that a reader holds is not written again. Neither side
//! waits for the other.
//!
//! Locks of the kernel tell the living from the dead: the producer and each reader hold one until their end. The holds of a reader without
//! a lock count no more.

mod files;
#[cfg(test)]
mod forged;
mod reader;
mod ring;
mod size;
#[cfg(test)]
mod tests;
mod writer;

pub use files::{ChannelFiles, frame_count, is_page_taken, is_ring_closed, is_ring_open, reader_lock, wake_readers};
pub use reader::{FrameHold, Policy, RingReader};
pub use size::ChannelSize;
pub use writer::{ChannelWriter, Loan};

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock of the machine in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// The lock of the producer.
const PRODUCER: u64 = 0;

/// The lock of the reader that has page number `page`.
fn lock_of(page: u32) -> u64 {
    PRODUCER + 1 + u64::from(page)
}

/// A frame in the ring: its number, and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    number: u64,
    slot: u16,
}

impl Entry {
    const SLOT_BITS: u32 = 16;

    /// The word of the entry. Frames are numbered from 1 on, so it is never zero.
    fn word(self) -> u64 {
        self.number << Self::SLOT_BITS | u64::from(self.slot)
    }

    /// The entry of a word; none for zero.
    fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Self { number: word >> Self::SLOT_BITS, slot: word as u16 })
    }
}

/// Words of the ring before its frames, and of each frame.
mod ring_words {
    /// 1 after the producer has closed the channel.
    pub(super) const CLOSED: usize = 0;
    /// The number of the newest frame; 0 before the first one.
    pub(super) const NEWEST: usize = 1;
    /// Changes with each frame, and when the channel is closed. Readers wait for that.
    pub(super) const SIGNAL: usize = 2;
    /// The words before the frames.
    pub(super) const HEADER: usize = 8;
    /// Words of a frame: its entry, and the time of its publication in nanoseconds of the monotonic clock.
    pub(super) const OF_FRAME: usize = 2;
}

/// Words of a reader's page before its holds.
mod page_words {
    /// The number of threads that wait.
    pub(super) const WAITING: usize = 0;
    /// The words before the holds.
    pub(super) const HEADER: usize = 1;
}
