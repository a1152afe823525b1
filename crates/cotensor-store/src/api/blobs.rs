//! Contents and notes by hash.

use crate::{BlobSource, BlobSpec, Holder, Lease};
use cotensor_core::{ContentHash, Result};

/// Keeps contents (weights) and small notes under hashes.
pub trait BlobStore: Send + Sync {
    /// Leases contents by hash. What is missing is filled by `source` into one new segment, each
    /// content once however many ask at the same time.
    ///
    /// # Errors
    /// What `source` returns, or as [`reserve`](TensorStore::reserve). Nothing that `source` was to fill is kept then;
    /// contents that were found elsewhere (in the cache) stay, unleased.
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>>;

    /// A small note kept under `key`, beyond this process where the store can.
    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a small note; losing one costs time, never correctness.
    fn put_note(&self, key: &ContentHash, note: &[u8]);
}
