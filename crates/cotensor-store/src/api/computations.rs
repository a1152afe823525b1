//! Results that are computed once.

use crate::{Holder, Key, Lease, Ticket};
use cotensor_core::Result;
use std::time::Duration;

/// Lets one caller compute a result that several callers need.
pub trait ComputationStore: Send + Sync {
    /// Claims the computation `key`: either its results are there, or the caller has to compute them while
    /// others wait, or another is computing and this call waits for it, as long as the store allows.
    ///
    /// # Errors
    /// `TimedOut` past the store's longest wait.
    fn claim(&self, key: &Key, holder: &Holder) -> Result<Claim> {
        self.claim_within(key, holder, Duration::MAX)
    }

    /// Like [`claim`](ComputationStore::claim), but waits at most `wait`. A zero `wait` never waits.
    ///
    /// # Errors
    /// `TimedOut` past `wait` or the store's longest wait; the error names the holder that computes.
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim>;

    /// Whether the results of `key` are there, without leasing or waiting.
    fn is_computed(&self, key: &Key) -> bool;
}

/// The answer to [`ComputationStore::claim`].
pub enum Claim {
    /// Computed already: its results, leased to the caller.
    Ready(Vec<Lease>),
    /// The caller computes. Others wait until the ticket is used or dropped.
    Compute(Ticket),
}
