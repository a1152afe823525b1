use crate::{ContentHash, Device, Result, Segment};
use std::ops::Range;
use std::sync::Arc;

/// A segment, and the byte range of one blob in it.
pub type BlobLocation = (Arc<dyn Segment>, Range<usize>);

/// Keeps blobs (weights) under their hashes beyond the life of a process. Processes that need the same bytes share the
/// same pages.
pub trait BlobCache: Send + Sync {
    /// The device of the segments that the cache returns.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// The blob with this hash, if the cache has it. The cache verifies lengths and its table; the bytes are those that
    /// were committed.
    fn find(&self, hash: &ContentHash) -> Option<BlobLocation>;

    /// Begins a pack: one segment with room for all `entries`, each a hash and a length in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is no room, [`ErrorKind::Invalid`](crate::ErrorKind::Invalid)
    /// past the limits.
    fn begin(&self, entries: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>>;

    /// The note kept under `key`.
    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a note of at most 1 MiB, in place of an earlier one under `key`. Notes may be lost, which only costs time.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot be written.
    fn put_note(&self, key: &ContentHash, note: &[u8]) -> Result<()>;
}

/// A pack that is being written. Dropping it removes it.
pub trait PackMut: Send {
    /// The bytes of entry `index`, for writing.
    ///
    /// # Panics
    /// For an index without an entry.
    fn entry_mut(&mut self, index: usize) -> &mut [u8];

    /// Makes the pack immutable and adds it to the cache; returns the location of each entry.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot be written.
    fn commit(self: Box<Self>) -> Result<Vec<BlobLocation>>;
}
