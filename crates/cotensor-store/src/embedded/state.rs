//! The fields of the embedded store.

use crate::blobs::Notes;
use crate::budget::Devices;
use crate::computations::Claims;
use crate::names::{Holders, Names};
use crate::reports::CopyLog;
use crate::spill::Spilling;
use crate::{Clock, Refusal, SharingConfig, StoreObserver};
use cotensor_core::BlobCache;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A store inside this process. Made by [`EmbeddedStore::builder`]; shared behind `Arc`.
pub struct EmbeddedStore {
    pub(crate) names: Names,
    pub(crate) claims: Claims,
    pub(crate) devices: Devices,
    pub(crate) cache: Option<Arc<dyn BlobCache>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When it was made, by the clock.
    pub(crate) began: Duration,
    pub(crate) counters: Counters,
    pub(crate) config: SharingConfig,
    pub(crate) holders: Holders,
    pub(crate) notes: Mutex<Notes>,
    pub(crate) observer: Option<Arc<dyn StoreObserver>>,
    pub(crate) spilling: Option<Spilling>,
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
    pub(crate) fn tell(&self, what: impl FnOnce(&dyn StoreObserver)) {
        if let Some(watch) = &self.observer {
            what(&**watch);
        }
    }
}
