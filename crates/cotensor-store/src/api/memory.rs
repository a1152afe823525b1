//! The memory of a store.

use crate::OptimizeReport;
use cotensor_core::Result;

/// Limits, frees and prepares the memory of a store.
pub trait MemoryControl: Send + Sync {
    /// Changes the most bytes that the store may hold, and evicts what nobody leases until it holds no more if that will
    /// do. What is leased stays.
    ///
    /// # Errors
    /// `Unsupported` for a store whose budget is not this process's to set.
    fn limit_memory(&self, max_bytes: u64) -> Result<()>;

    /// Makes memory for `count` tensors of `bytes` bytes ready, so that putting them takes the time of the copy; returns for
    /// how many there was room. To be called when there is nothing better to do: it takes longer than it spares.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    fn prefault(&self, bytes: usize, count: usize) -> Result<usize> {
        let _ = (bytes, count);
        Ok(0)
    }

    /// Frees every tensor that nobody leases.
    fn optimize(&self) -> OptimizeReport;
}
