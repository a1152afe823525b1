use crate::{ContentHash, Device, Result, Segment};
use std::ops::Range;
use std::sync::Arc;

/// A segment and the bytes of it that hold one content.
pub type Located = (Arc<dyn Segment>, Range<usize>);

/// Keeps contents (weights) under their hash beyond the life of a process, so that every
/// process that wants the same bytes reads the same pages.
pub trait BlobCache: Send + Sync {
    /// The device of the segments that the cache returns.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// The content with this hash, if it is kept. Length and hash table are verified, the bytes are
    /// those that were committed.
    fn find(&self, hash: &ContentHash) -> Option<Located>;

    /// Starts a pack: one segment with room for all `entries`, each a hash and a length in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is no room, [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) past the limits.
    fn begin(&self, entries: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>>;

    /// A small note kept under `key` by [`remember`](BlobCache::put_note).
    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a small note (at most 1 MiB); the newest under a key wins. Losing one costs time, never correctness.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot be written.
    fn put_note(&self, key: &ContentHash, note: &[u8]) -> Result<()>;
}

/// A pack that is being written. Dropping it leaves nothing behind.
pub trait PackMut: Send {
    /// The bytes of entry `index`, for writing.
    ///
    /// # Panics
    /// When there is no such entry.
    fn entry_mut(&mut self, index: usize) -> &mut [u8];

    /// Makes the pack immutable and findable; returns where each entry lies.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot be kept.
    fn commit(self: Box<Self>) -> Result<Vec<Located>>;
}
