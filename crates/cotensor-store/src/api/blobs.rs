//! Blobs and notes by hash.

use crate::{BlobSource, BlobSpec, Holder, Lease};
use cotensor_core::{ContentHash, Result};

/// Keeps blobs (weights) and small notes under hashes.
pub trait BlobStore: Send + Sync {
    /// Leases blobs by hash. `source` fills the missing ones into one new segment, each blob once for all concurrent
    /// requests. All blobs of a request are on one device.
    ///
    /// # Errors
    /// Those of `source`, and those of [`TensorStore::reserve`](crate::TensorStore::reserve). No blob of `source` is
    /// then published; blobs that the cache had stay, unleased.
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>>;

    /// The note under `key`. A store with a cache keeps notes beyond this process.
    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a small note, at most 1 MiB. Notes may be lost, which only costs time.
    fn put_note(&self, key: &ContentHash, note: &[u8]);
}
