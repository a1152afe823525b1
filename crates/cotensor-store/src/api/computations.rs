//! Computations: results that are computed once.

use crate::{Holder, Key, Lease, Ticket};
use cotensor_core::Result;
use std::time::Duration;

/// Lets one caller compute a result that several callers need.
pub trait ComputationStore: Send + Sync {
    /// Claims the computation `key`: leases its results if they exist, else lets the caller compute them. While another
    /// holder computes, this call waits, as long as the store allows.
    ///
    /// # Errors
    /// `TimedOut` after the longest wait of the store. The error of reading spilled results that may be read later, such as `OverBudget` or `Io`.
    fn claim(&self, key: &Key, holder: &Holder) -> Result<Claim> {
        self.claim_within(key, holder, Duration::MAX)
    }

    /// As [`claim`](ComputationStore::claim), but waits at most `wait`. A zero `wait` never waits.
    ///
    /// # Errors
    /// `TimedOut` after `wait` or the longest wait of the store; the error names the holder that computes.
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim>;

    /// As [`claim_within`](ComputationStore::claim_within) without a wait, for each of `keys`. A store of another process answers
    /// many in one round trip.
    ///
    /// Before the caller waits for the claims of other holders, it publishes or abandons its own: two callers with equal keys would
    /// wait for each other.
    fn claim_each(&self, keys: &[Key], holder: &Holder) -> Vec<Result<Claim>> {
        keys.iter().map(|key| self.claim_within(key, holder, Duration::ZERO)).collect()
    }

    /// Whether the results of `key` exist, without leasing or waiting.
    fn is_computed(&self, key: &Key) -> bool;
}

/// The answer to [`ComputationStore::claim`].
pub enum Claim {
    /// The results, leased to the caller.
    Ready(Vec<Lease>),
    /// The caller computes. Other callers wait until the ticket is used or dropped.
    Compute(Ticket),
}
