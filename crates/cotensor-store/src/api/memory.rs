//! The memory of a store.

use crate::OptimizeReport;
use cotensor_core::{Device, Result};

/// Limits, frees and prepares the memory of a store.
pub trait MemoryControl: Send + Sync {
    /// Sets the most bytes that the store may hold on `device`. Evicts unleased tensors until the limit holds; leased
    /// tensors stay.
    ///
    /// # Errors
    /// `Unsupported` for a device that the store does not have, and for a store whose budget belongs to another
    /// process.
    fn limit_memory(&self, device: Device, max_bytes: u64) -> Result<()>;

    /// Prefaults memory of `device` for `count` tensors of `bytes` bytes each, so that publishing them takes only the
    /// time of the copy. Returns for how many there was room. The call takes longer than it saves; call it while
    /// idle.
    ///
    /// # Errors
    /// `Io` when the system has no more memory; `Unsupported` for a device that the store does not have.
    fn prefault(&self, device: Device, bytes: usize, count: usize) -> Result<usize> {
        let _ = (device, bytes, count);
        Ok(0)
    }

    /// As [`prefault`](Self::prefault), for tensors of [`reserve_to_fill`](crate::TensorStore::reserve_to_fill).
    ///
    /// # Errors
    /// As [`prefault`](Self::prefault).
    fn prefault_to_fill(&self, device: Device, bytes: usize, count: usize) -> Result<usize> {
        self.prefault(device, bytes, count)
    }

    /// Frees all unleased tensors.
    fn optimize(&self) -> OptimizeReport;
}
