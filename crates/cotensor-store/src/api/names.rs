//! Names: listing and watching them.

use crate::{ChangePosition, EveryVersion, NameChanges, NameFilter, NamedVersion, TensorId};
use cotensor_core::Result;
use std::time::Duration;

/// Lists names and waits for their changes. Private tensors have no names here.
pub trait NameStore: Send + Sync {
    /// The newest version of `name`, in memory or spilled, without leasing it; `None` when there is no such name.
    ///
    /// # Errors
    /// `Io` when the store cannot be reached.
    fn find_name(&self, name: &str) -> Result<Option<TensorId>>;

    /// The names that start with `prefix`, in order.
    ///
    /// # Errors
    /// As [`find_name`](NameStore::find_name).
    fn names(&self, prefix: &str) -> Result<Vec<NamedVersion>>;

    /// The number of names that start with `prefix`.
    ///
    /// # Errors
    /// As [`find_name`](NameStore::find_name).
    fn count_names(&self, prefix: &str) -> Result<usize>;

    /// Waits for changes of the names that `filter` selects after `since`, at most `wait` and while `keep_waiting` is
    /// true. No change is returned when the wait ends first. Without `since` it does not wait, and returns the current
    /// position.
    ///
    /// Changes that the caller has not read yet are bounded: see [`NameChanges::incomplete`].
    ///
    /// # Errors
    /// As [`find_name`](NameStore::find_name).
    fn changes(
        &self,
        filter: &NameFilter,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges>;

    /// As [`changes`](NameStore::changes), with every version: opens a queue, without `since`, and returns its position. With a position, the
    /// caller has read the changes up to it, whose leases end; the answer has the next ones in order. With
    /// [`incomplete`](NameChanges::incomplete) the queue has ended, also because the daemon's server was replaced: open another one.
    ///
    /// When memory is needed, the store gives the leases of queues up: lease each version, and count those that are not found as dropped.
    ///
    /// # Errors
    /// `Invalid` for limits out of their ranges, `Conflict` when too many queues are open, `Io` when the store cannot be reached.
    fn versions(
        &self,
        every: &EveryVersion,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges>;

    /// Ends a queue of every version and releases its leases.
    fn end_versions(&self, position: ChangePosition);
}
