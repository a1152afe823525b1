//! Blobs: contents that are found by their hash.

use cotensor_core::{ContentHash, DType, Device, Hasher, Result};
use std::sync::Arc;

/// A blob to lease: its hash, and the dtype and shape of its bytes. Row-major.
#[derive(Clone, Debug)]
pub struct BlobSpec {
    /// BLAKE3 of the bytes.
    pub hash: ContentHash,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The device whose memory holds it.
    pub device: Device,
    /// The producer, for messages and reports.
    pub producer: String,
    /// What it is for people, such as `bert/pooler.dense.weight`: a part of the tensor's name, unless it is empty or too long.
    pub label: String,
    /// What readers are to know: a JSON object, at most [`METADATA_BYTES_MAX`](crate::METADATA_BYTES_MAX) bytes. A blob has those of the
    /// caller that provided its bytes.
    pub metadata: Option<Arc<str>>,
}

impl BlobSpec {
    /// The identity of the value: the hash of bytes, dtype and shape. Bytes alone are not a value: six zeros of
    /// `float32` differ from three zeros of `int64`.
    pub fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor content value v1");
        hasher.field(self.hash.as_bytes()).field(self.dtype.name().as_bytes()).number(self.shape.len() as u64);
        for &dim in &self.shape {
            hasher.number(dim as u64);
        }
        hasher.finish()
    }
}

/// Provides the bytes of blobs that the store does not have.
pub trait BlobSource {
    /// Fills `target`, which has the length of the blob, with blob number `index` of the request.
    ///
    /// # Errors
    /// Those of the source. The store then publishes no blob of this source, not even blobs that were filled before.
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()>;
}
