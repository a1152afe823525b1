//! Setting a store up.

use crate::budget::{Budget, Devices};
use crate::computations::Claims;
use crate::embedded::{Counters, EmbeddedStore};
use crate::names::{Holders, Names, SHARDS};
use crate::spill::Spilling;
use crate::{Clock, SharingConfig, SpillStorage, StoreObserver, SystemClock};
use cotensor_core::{BlobCache, Device, HeapMemory, Memory};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest that a claim waits for another's computation, unless the builder says otherwise.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(600);

/// Sets an [`EmbeddedStore`] up.
pub struct EmbeddedStoreBuilder {
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

impl EmbeddedStoreBuilder {
    /// For a store that will hold next to nothing.
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

    /// What each listed tensor takes from that beside its segment, for what is known about it: so many bytes, and more for its
    /// name, its producer and its dimensions. Nothing by default.
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

    /// Where weights are kept beyond this process.
    #[must_use]
    pub fn cache(mut self, cache: Arc<dyn BlobCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The clock behind ages and recency.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What may be shared.
    #[must_use]
    pub fn config(mut self, config: SharingConfig) -> Self {
        self.config = config;
        self
    }

    /// The longest that a claim waits for another's computation.
    #[must_use]
    pub fn claim_wait_max(mut self, wait: Duration) -> Self {
        self.claim_wait_max = wait;
        self
    }

    /// What decides, with the name, which slots a name can have: a store that is to take over what another had is made
    /// with the other's seed. Random by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Who is told of what changes.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn StoreObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Where tensors that nobody leases go when their memory is wanted. Without it they are dropped.
    #[must_use]
    pub fn spill(mut self, spill: Arc<dyn SpillStorage>) -> Self {
        self.spill = Some(spill);
        self
    }

    /// The store.
    pub fn build(self) -> Arc<EmbeddedStore> {
        let host = Budget::with_metadata(self.max_memory_bytes, self.metadata_bytes);
        let mut memories = self.memories;
        memories.entry(host.device()).or_insert_with(|| Arc::new(HeapMemory));
        let seed = self.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        Arc::new_cyclic(|me| EmbeddedStore {
            names: Names::new(self.shards, seed),
            claims: Claims::new(self.claim_wait_max),
            devices: Devices::new(memories, self.device_limits, host),
            cache: self.cache,
            began: self.clock.now(),
            clock: self.clock,
            counters: Counters::default(),
            config: self.config,
            holders: Holders::default(),
            notes: Mutex::default(),
            observer: self.observer,
            spilling: self.spill.map(Spilling::new),
            me: me.clone(),
        })
    }
}

impl EmbeddedStore {
    /// Starts setting a store up: heap memory, no cache, no limit.
    pub fn builder() -> EmbeddedStoreBuilder {
        EmbeddedStoreBuilder {
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
