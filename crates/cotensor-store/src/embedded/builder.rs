//! Setting a store up.

use crate::budget::Budget;
use crate::computations::Claims;
use crate::embedded::{Counters, EmbeddedStore};
use crate::names::Holders;
use crate::names::{Names, SHARDS};
use crate::spill::Spilling;
use crate::{Clock, SharingConfig, Spill, SystemClock, Watch};
use cotensor_core::{ContentCache, HeapMemory, Memory};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest that a claim waits for another's computation, unless the builder says otherwise.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(600);

/// Sets an [`EmbeddedStore`] up.
pub struct EmbeddedStoreBuilder {
    max_memory_bytes: u64,
    metadata_bytes: u64,
    memory: Arc<dyn Memory>,
    cache: Option<Arc<dyn ContentCache>>,
    clock: Arc<dyn Clock>,
    config: SharingConfig,
    claim_wait_max: Duration,
    shards: usize,
    seed: Option<u64>,
    watch: Option<Arc<dyn Watch>>,
    spill: Option<Arc<dyn Spill>>,
}

impl EmbeddedStoreBuilder {
    /// For a store that will hold next to nothing.
    pub(crate) fn small(mut self) -> Self {
        self.shards = 1;
        self
    }

    /// The most bytes of all segments together. Without it there is no limit.
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

    /// Where segments are reserved; the heap by default.
    #[must_use]
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = memory;
        self
    }

    /// Where weights are kept beyond this process.
    #[must_use]
    pub fn cache(mut self, cache: Arc<dyn ContentCache>) -> Self {
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
    pub fn watch(mut self, watch: Arc<dyn Watch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Where tensors that nobody leases go when their memory is wanted. Without it they are dropped.
    #[must_use]
    pub fn spill(mut self, spill: Arc<dyn Spill>) -> Self {
        self.spill = Some(spill);
        self
    }

    /// The store.
    pub fn build(self) -> Arc<EmbeddedStore> {
        let seed = self.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        Arc::new_cyclic(|me| EmbeddedStore {
            names: Names::new(self.shards, seed),
            claims: Claims::new(self.claim_wait_max),
            budget: Budget::with_metadata(self.max_memory_bytes, self.metadata_bytes),
            memory: self.memory,
            cache: self.cache,
            began: self.clock.now(),
            clock: self.clock,
            counters: Counters::default(),
            config: self.config,
            holders: Holders::default(),
            notes: Mutex::default(),
            watch: self.watch,
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
            memory: Arc::new(HeapMemory),
            cache: None,
            clock: Arc::new(SystemClock::default()),
            config: SharingConfig::default(),
            claim_wait_max: CLAIM_WAIT_MAX,
            shards: SHARDS,
            seed: None,
            watch: None,
            spill: None,
        }
    }
}
