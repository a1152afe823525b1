//! The builder of a local store.

use crate::budget::{Budget, Devices};
use crate::computations::Claims;
use crate::eviction::{Ages, LastUses};
use crate::local::LocalStore;
use crate::names::{Names, SHARDS};
use crate::reports::Counters;
use crate::spill::SpillState;
use crate::{Clock, SharingConfig, SpillStorage, StoreObserver, SystemClock};
use cotensor_core::{BlobCache, Device, HeapMemory, Memory};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The default of [`LocalStoreBuilder::claim_wait_max`].
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(600);

/// Builds an [`LocalStore`].
pub struct LocalStoreBuilder {
    max_memory_bytes: u64,
    metadata_bytes: u64,
    memories: BTreeMap<Device, Arc<dyn Memory>>,
    device_limits: BTreeMap<Device, u64>,
    cache: Option<Arc<dyn BlobCache>>,
    clock: Arc<dyn Clock>,
    config: SharingConfig,
    claim_wait_max: Duration,
    shards: usize,
    seed: Option<u64>,
    observer: Option<Arc<dyn StoreObserver>>,
    spill: Option<Arc<dyn SpillStorage>>,
}

impl LocalStoreBuilder {
    /// One shard instead of many, for a store of a few tensors.
    #[must_use]
    pub fn small(mut self) -> Self {
        self.shards = 1;
        self
    }

    /// The most bytes of all segments in host memory, and of the metadata of all tensors. Without it there is no limit.
    #[must_use]
    pub fn max_memory_bytes(mut self, bytes: u64) -> Self {
        self.max_memory_bytes = bytes;
        self
    }

    /// The metadata bytes of each listed tensor that the budget counts; name, producer and dimensions add to them. With
    /// the default, zero, the budget counts no metadata.
    #[must_use]
    pub fn metadata_bytes(mut self, each: u64) -> Self {
        self.metadata_bytes = each;
        self
    }

    /// The memory of one device, which [`Memory::device`] names. For the host it is the heap by default.
    #[must_use]
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memories.insert(memory.device(), memory);
        self
    }

    /// The most bytes of all segments on `device`; without it there is no limit. For a device without a
    /// [`memory`](Self::memory), the store then adopts memory that other processes make.
    #[must_use]
    pub fn max_device_bytes(mut self, device: Device, bytes: u64) -> Self {
        if device.is_host() {
            return self.max_memory_bytes(bytes);
        }
        self.device_limits.insert(device, bytes);
        self
    }

    /// A cache that keeps blobs beyond this process.
    #[must_use]
    pub fn cache(mut self, cache: Arc<dyn BlobCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The clock for ages and last uses.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The tensors that may be shared.
    #[must_use]
    pub fn config(mut self, config: SharingConfig) -> Self {
        self.config = config;
        self
    }

    /// The longest time that a claim waits for another holder's computation; 10 minutes by default.
    #[must_use]
    pub fn claim_wait_max(mut self, wait: Duration) -> Self {
        self.claim_wait_max = wait;
        self
    }

    /// The seed of the hash that maps names to ids; random by default. A store that restores the tensors of a former
    /// one needs the seed of that one.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// An observer of every change.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn StoreObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Storage to which unleased tensors are spilled when memory is needed. Without it they are evicted.
    #[must_use]
    pub fn spill(mut self, spill: Arc<dyn SpillStorage>) -> Self {
        self.spill = Some(spill);
        self
    }

    /// Builds the store.
    pub fn build(self) -> Arc<LocalStore> {
        let host = Budget::with_metadata(self.max_memory_bytes, self.metadata_bytes);
        let mut memories = self.memories;
        memories.entry(host.device()).or_insert_with(|| Arc::new(HeapMemory));
        let seed = self.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        Arc::new_cyclic(|me| LocalStore {
            names: Names::new(self.shards, seed),
            changes: Arc::default(),
            queues: Default::default(),
            claims: Claims::new(self.claim_wait_max),
            devices: Devices::new(memories, self.device_limits, host),
            cache: self.cache,
            started: self.clock.now(),
            clock: self.clock,
            counters: Counters::default(),
            last_uses: LastUses::default(),
            ages: Ages::default(),
            config: self.config,
            notes: Mutex::default(),
            observer: self.observer,
            spill: self.spill.map(SpillState::new),
            me: me.clone(),
        })
    }
}

impl LocalStore {
    /// A builder with heap memory, without a cache and without limits.
    pub fn builder() -> LocalStoreBuilder {
        LocalStoreBuilder {
            max_memory_bytes: u64::MAX,
            metadata_bytes: 0,
            memories: BTreeMap::new(),
            device_limits: BTreeMap::new(),
            cache: None,
            clock: Arc::new(SystemClock::default()),
            config: SharingConfig::default(),
            claim_wait_max: CLAIM_WAIT_MAX,
            shards: SHARDS,
            seed: None,
            observer: None,
            spill: None,
        }
    }
}
