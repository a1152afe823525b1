//! Contents that are found by their hash.

use cotensor_core::{ContentHash, DType, Device, Hasher, Result};

/// A content to lease: its hash, and how to look at its bytes. Row-major.
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
    /// Who wants it, for people.
    pub producer: String,
}

impl BlobSpec {
    /// What the value is: these bytes as this dtype in this shape. The bytes alone are not a value: six zeros of
    /// `float32` are no three zeros of `int64`.
    pub fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor content value v1");
        hasher.field(self.hash.as_bytes()).field(self.dtype.name().as_bytes()).number(self.shape.len() as u64);
        for &dim in &self.shape {
            hasher.number(dim as u64);
        }
        hasher.finish()
    }
}

/// Provides the bytes of contents that the store does not have yet.
pub trait BlobSource {
    /// Fills `target` (exactly the content's bytes) with content number `index` of the request.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being had; the store then keeps nothing of what it asked this source for, the
    /// contents filled before included.
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()>;
}
