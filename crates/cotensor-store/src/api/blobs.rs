//! Contents and notes by hash.

use crate::{ContentSource, ContentSpec, Holder, Lease};
use cotensor_core::{ContentHash, Result};

/// Keeps contents (weights) and small notes under hashes.
pub trait BlobStore: Send + Sync {
    /// Leases contents by hash. What is missing is filled by `source` into one new segment, each
    /// content once however many ask at the same time.
    ///
    /// # Errors
    /// What `source` returns, or as [`reserve`](TensorStore::reserve). Nothing that `source` was to fill is kept then;
    /// contents that were found elsewhere (in the cache) stay, unleased.
    fn contents(&self, specs: &[ContentSpec], source: &mut dyn ContentSource, holder: &Holder) -> Result<Vec<Lease>>;

    /// A small note kept under `key`, beyond this process where the store can.
    fn recall(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a small note; losing one costs time, never correctness.
    fn remember(&self, key: &ContentHash, note: &[u8]);
}
