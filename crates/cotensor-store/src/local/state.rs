//! The fields of the local store: the components, and what the store was built with.

use crate::blobs::Notes;
use crate::budget::Devices;
use crate::computations::Claims;
use crate::eviction::{Ages, LastUses};
use crate::names::{ChangeLog, Names, VersionQueues};
use crate::reports::Counters;
use crate::spill::SpillState;
use crate::{Clock, SharingConfig, StoreObserver};
use cotensor_core::BlobCache;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A store inside this process. [`LocalStore::builder`] makes one behind an `Arc`.
pub struct LocalStore {
    pub(crate) names: Names,
    pub(crate) changes: Arc<ChangeLog>,
    pub(crate) queues: VersionQueues,
    pub(crate) claims: Claims,
    pub(crate) devices: Devices,
    pub(crate) cache: Option<Arc<dyn BlobCache>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The time of its creation, by the clock.
    pub(crate) started: Duration,
    pub(crate) counters: Counters,
    pub(crate) config: SharingConfig,
    pub(crate) notes: Mutex<Notes>,
    pub(crate) observer: Option<Arc<dyn StoreObserver>>,
    pub(crate) spill: Option<SpillState>,
    pub(crate) last_uses: LastUses,
    pub(crate) ages: Ages,
    pub(crate) me: Weak<LocalStore>,
}

impl LocalStore {
    /// Calls the observer, if there is one.
    pub(crate) fn notify(&self, event: impl FnOnce(&dyn StoreObserver)) {
        if let Some(observer) = &self.observer {
            event(&**observer);
        }
    }
}
