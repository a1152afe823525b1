//! The sizes of a channel's memory.

use super::{page_words, ring_words};
use crate::host::WORD_BYTES;
use cotensor_core::{Error, Result, padded};
use rustix::param::page_size;

/// Frames that a producer can write at a time.
pub(super) const LOANS: usize = 3;
/// The most frames in the ring.
const SLOTS_MAX: u32 = 4096;
/// The most readers: each has a page, whose descriptor travels in one message with the others.
const READERS_MAX: u32 = 32;
/// The most frames that one reader holds.
const HOLDS_MAX: u32 = 256;

/// The sizes of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSize {
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Frames that a reader can be behind without a loss, 1 to 4096.
    pub slots: u32,
    /// The most readers at a time, 1 to 32.
    pub readers: u32,
    /// The most frames that one reader holds at a time, 1 to 256.
    pub holds: u32,
}

impl ChannelSize {
    /// Checks the limits. All other methods rely on it.
    ///
    /// # Errors
    /// `Invalid`, with the field.
    pub fn check(&self) -> Result<()> {
        let limits = [
            ("slots", self.slots, SLOTS_MAX),
            ("readers", self.readers, READERS_MAX),
            ("holds", self.holds, HOLDS_MAX),
        ];
        for (field, value, max) in limits {
            if value == 0 || value > max {
                return Err(
                    Error::invalid(format!("a channel with {value} {field}; 1 to {max} are possible")).in_field(field)
                );
            }
        }
        if self.frame_bytes == 0 {
            return Err(Error::invalid("a channel of frames without bytes").in_field("shape"));
        }
        self.memory_bytes().map(drop)
    }

    /// Bytes from the start of a slot to that of the next one.
    pub(super) fn stride(&self) -> usize {
        self.frame_bytes.next_multiple_of(cotensor_core::ALIGNMENT)
    }

    /// Frames in memory: those of the ring, those that readers hold, and those that the producer writes.
    pub fn frames(&self) -> usize {
        self.slots as usize + LOANS + self.readers as usize * self.holds as usize
    }

    /// Bytes of the memory of all frames.
    ///
    /// # Errors
    /// `Invalid` for more than a segment may have.
    pub fn memory_bytes(&self) -> Result<usize> {
        let too_many = || Error::invalid("more bytes than this machine can address");
        let bytes = padded(self.frame_bytes).and_then(|stride| stride.checked_mul(self.frames()).ok_or_else(too_many));
        bytes.and_then(padded).map_err(|error| error.in_field("shape"))
    }

    /// Bytes that the channel takes: frames, and the ring and the readers' pages in whole pages of memory.
    ///
    /// # Errors
    /// Those of [`memory_bytes`](Self::memory_bytes).
    pub fn total_bytes(&self) -> Result<usize> {
        let [ring, page] = [self.ring_bytes(), self.page_bytes()].map(|bytes| bytes.next_multiple_of(page_size()));
        let files = ring + self.readers as usize * page;
        self.memory_bytes()?
            .checked_add(files)
            .ok_or_else(|| Error::invalid("more bytes than this machine can address"))
    }

    pub(super) fn ring_word_count(&self) -> usize {
        ring_words::HEADER + self.slots as usize * ring_words::OF_FRAME
    }

    /// The first word of the frame `number` in the ring.
    pub(super) fn ring_word_of(&self, number: u64) -> usize {
        ring_words::HEADER + (number % u64::from(self.slots)) as usize * ring_words::OF_FRAME
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> usize {
        self.ring_word_count() * WORD_BYTES
    }

    pub(super) fn page_word_count(&self) -> usize {
        page_words::HEADER + self.holds as usize
    }

    /// Bytes of the page of a reader.
    pub fn page_bytes(&self) -> usize {
        self.page_word_count() * WORD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        let size = ChannelSize { frame_bytes: 600_000, slots: 4, readers: 4, holds: 2 };
        size.check().unwrap();
        assert_eq!((size.frames(), size.memory_bytes().unwrap()), (15, 15 * 600_000));
        let fields = |size: ChannelSize| size.check().unwrap_err().field().map(str::to_owned);
        assert_eq!(fields(ChannelSize { slots: 0, ..size }).as_deref(), Some("slots"));
        assert_eq!(fields(ChannelSize { readers: 33, ..size }).as_deref(), Some("readers"));
        assert_eq!(fields(ChannelSize { holds: 257, ..size }).as_deref(), Some("holds"));
        assert_eq!(fields(ChannelSize { frame_bytes: 0, ..size }).as_deref(), Some("shape"));
        assert_eq!(fields(ChannelSize { frame_bytes: usize::MAX / 8, ..size }).as_deref(), Some("shape"));
        assert!(ChannelSize { slots: 4096, readers: 32, holds: 256, ..size }.frames() <= usize::from(u16::MAX));
    }
}
