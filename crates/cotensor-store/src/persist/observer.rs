//! Observers of a store's changes.

use crate::leases::Record;
use crate::spill::SpilledSegment;
use crate::{Key, TensorId};
use std::time::Duration;

/// Receives every change while the name is locked: the changes of one name arrive in their order, and before any caller
/// can act on them. An observer must not call the store.
pub trait StoreObserver: Send + Sync {
    /// `record` becomes the newest version of its name.
    fn on_publish(&self, record: &Record);

    /// `record` lost its name. It may still be leased.
    fn on_unlist(&self, record: &Record);

    /// `record` was removed from the store.
    fn on_free(&self, record: &Record);

    /// The last lease of `record`, which is kept for a [time](Record::keep_for), ended at `since` by the store's clock. Called without the
    /// lock of the name: the record may be leased again, or freed.
    fn on_left(&self, record: &Record, since: Duration) {
        let _ = (record, since);
    }

    /// The segment of `record`, which has no lease, was spilled. Restoring it calls
    /// [`on_publish`](StoreObserver::on_publish) again.
    fn on_spill(&self, record: &Record, spilled: &dyn SpilledSegment);

    /// A spilled version was removed from the store.
    fn on_spilled_free(&self, id: TensorId);

    /// The computation `key` has these results, which are all published.
    fn on_results(&self, key: &Key, results: &[TensorId]);

    /// The computation `key` was abandoned.
    fn on_abandon(&self, key: &Key);

    /// Text for an over-budget error: other reasons than leases for which memory is in use, such as clients that are
    /// expected to reconnect.
    fn retained_memory(&self) -> Option<String> {
        None
    }
}
