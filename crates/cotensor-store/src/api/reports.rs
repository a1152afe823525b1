//! Configuration, counters and reports.

use crate::{CopyReason, Diagnostics, Recommendations, SharingConfig, Stats};

/// Reports the contents and the counters of a store.
pub trait StoreReports: Send + Sync {
    /// What may be shared.
    fn config(&self) -> &SharingConfig;

    /// Counts a copy of `bytes` bytes of `tensor` (its name, or what else tells people which) and why it was made.
    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize);

    /// The store's counters.
    fn stats(&self) -> Stats;

    /// What could be saved, and where.
    fn recommendations(&self) -> Recommendations;

    /// Every live tensor with holders, bytes, device, age and hits; and every copy with its reason.
    fn diagnostics(&self) -> Diagnostics;
}
