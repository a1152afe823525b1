//! The memory of a view, for programs that keep its address.

use cotensor_store::Lease;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// The memory of a [`SharedTensorView`](crate::SharedTensorView).
pub enum ViewMemory {
    /// Unpublished memory, which the producer may write. No other code may read or write it at the same time.
    Writable {
        /// The first byte of the view. Valid while the view and `keep` exist. After publishing, writes through it are
        /// private to the writer.
        start: NonNull<u8>,
        /// Keeps the address valid even when publishing fails.
        keep: Option<Arc<dyn Any + Send + Sync>>,
    },
    /// Published, immutable memory: a lease of the whole tensor.
    Published(Lease),
}
