//! Reservations: tensors that are being written.

use crate::backend::{StoreBackend, UnpublishedTensor};
use crate::{CopyReason, Lease};
use cotensor_core::{Device, Layout, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The memory of an unpublished tensor, which its holder writes. Dropping it frees the memory.
pub struct Reservation {
    pub(crate) tensor: UnpublishedTensor,
    pub(crate) backend: Arc<dyn StoreBackend>,
}

impl Reservation {
    /// A reservation that `backend` publishes.
    pub fn new(tensor: UnpublishedTensor, backend: Arc<dyn StoreBackend>) -> Self {
        Self { tensor, backend }
    }

    /// The name that publishing gives it.
    pub fn name(&self) -> &str {
        &self.tensor.spec.name
    }

    /// How the elements lie in the segment: row-major.
    pub fn layout(&self) -> &Layout {
        &self.tensor.layout
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.tensor.spec.device
    }

    /// The bytes; `None` where the host cannot address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.tensor.segment.bytes()
    }

    /// The bytes for writing in place; `None` where the host cannot address them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.tensor.segment.bytes_mut()
    }

    /// Keeps the address of the bytes valid while the returned value exists, even if publishing fails. `None` unless it
    /// was reserved by [`TensorStore::reserve_aliased`](crate::TensorStore::reserve_aliased).
    pub fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.tensor.segment.pin_address()
    }

    /// Copies `bytes` to the start of the tensor, and counts the copy under `reason`.
    ///
    /// # Errors
    /// `Invalid` when they do not fit; `Unsupported` where the host cannot write the memory.
    pub fn write(&mut self, bytes: &[u8], reason: CopyReason) -> Result<()> {
        self.tensor.segment.write_at(self.tensor.layout.offset_bytes(), bytes)?;
        self.backend.count_copy(&self.tensor.spec.name, reason, bytes.len());
        Ok(())
    }

    /// Counts a copy of `bytes` bytes into the tensor that did not use [`write`](Self::write).
    pub fn record_copy(&self, reason: CopyReason, bytes: usize) {
        self.backend.count_copy(&self.tensor.spec.name, reason, bytes);
    }

    /// Makes the tensor immutable, publishes it under its name, and leases it to its holder.
    ///
    /// # Errors
    /// `Io` when the memory cannot be sealed.
    pub fn publish(self) -> Result<Lease> {
        self.backend.publish(self.tensor, None)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} {:?})", self.name(), self.layout())
    }
}
