//! Configuration, counters and reports.

use crate::{CopyReason, Diagnostics, Recommendations, SharingConfig, Stats};

/// Reports the contents and the counters of a store.
pub trait StoreReports: Send + Sync {
    /// The configuration of sharing.
    fn config(&self) -> &SharingConfig;

    /// Counts a copy of `bytes` bytes under `reason`. `tensor` is a name for reports.
    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize);

    /// The store's counters.
    fn stats(&self) -> Stats;

    /// Memory that could be saved.
    fn recommendations(&self) -> Recommendations;

    /// Every tensor with holders, bytes, device, age and hits; every copy with its reason.
    fn diagnostics(&self) -> Diagnostics;
}
