//! The fields of the embedded store. Its methods are in the folders of their concepts.

use crate::blobs::Notes;
use crate::budget::Devices;
use crate::computations::Claims;
use crate::eviction::{Ages, LastUses};
use crate::names::{ChangeLog, Names, VersionQueues};
use crate::reports::CopyLog;
use crate::spill::SpillState;
use crate::{Clock, Refusal, SharingConfig, StoreObserver};
use cotensor_core::BlobCache;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A store inside this process. [`EmbeddedStore::builder`] makes one behind an `Arc`.
pub struct EmbeddedStore {
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
    pub(crate) me: Weak<EmbeddedStore>,
}

#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) claim_hits: AtomicU64,
    pub(crate) claim_misses: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) spills: AtomicU64,
    pub(crate) spilled_bytes: AtomicU64,
    pub(crate) restores: AtomicU64,
    pub(crate) refused: [AtomicU64; Refusal::ALL.len()],
    pub(crate) copies: CopyLog,
    pub(crate) cache_errors: AtomicU64,
    pub(crate) last_cache_error: Mutex<Option<String>>,
}

impl EmbeddedStore {
    /// Calls the observer, if there is one.
    pub(crate) fn notify(&self, event: impl FnOnce(&dyn StoreObserver)) {
        if let Some(observer) = &self.observer {
            event(&**observer);
        }
    }
}
