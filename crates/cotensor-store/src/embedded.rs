//! The store inside a process.

use crate::budget::{Budget, Charge};
use crate::claims::{Claims, Found};
use crate::config::Refusal;
use crate::evict::{candidates, charged_bytes};
use crate::names::{Names, SHARDS};
use crate::notes::Notes;
use crate::record::{Home, Record};
use crate::{
    Claim, Clock, ContentSource, ContentSpec, CopyReason, Diagnostics, Holder, Key, Lease, OptimizeReport,
    Recommendations, Reservation, SharingConfig, Stats, Store, SystemClock, TensorId, TensorSpec, Ticket,
};
use cotensor_core::{ContentCache, ContentHash, Error, ErrorKind, HeapMemory, Layout, Memory, Result, Segment};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

/// The longest that a claim waits for another's computation, unless the builder says otherwise.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(600);

/// The clock as it was when something was last reserved, published or claimed: all that lookups need to know of time,
/// for which reading the real one would cost them a third more. Alone on its cache line, which they only read.
#[repr(align(128))]
#[derive(Default)]
struct Moment(AtomicU64);

/// A store inside this process. Made by [`EmbeddedStore::builder`]; shared behind `Arc`.
pub struct EmbeddedStore {
    pub(crate) names: Names,
    pub(crate) claims: Claims,
    pub(crate) budget: Arc<Budget>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) cache: Option<Arc<dyn ContentCache>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    moment: Moment,
    config: SharingConfig,
    holders: RwLock<Holders>,
    notes: Mutex<Notes>,
    pub(crate) me: Weak<EmbeddedStore>,
}

#[derive(Default)]
struct Holders {
    ids: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) claim_hits: AtomicU64,
    pub(crate) claim_misses: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) refused: [AtomicU64; Refusal::ALL.len()],
    pub(crate) copies: [(AtomicU64, AtomicU64); CopyReason::ALL.len()],
}

/// Sets an [`EmbeddedStore`] up.
pub struct EmbeddedStoreBuilder {
    max_memory_bytes: u64,
    memory: Arc<dyn Memory>,
    cache: Option<Arc<dyn ContentCache>>,
    clock: Arc<dyn Clock>,
    config: SharingConfig,
    claim_wait_max: Duration,
    shards: usize,
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

    /// The store.
    pub fn build(self) -> Arc<EmbeddedStore> {
        Arc::new_cyclic(|me| EmbeddedStore {
            names: Names::new(self.shards),
            claims: Claims::new(self.claim_wait_max),
            budget: Budget::new(self.max_memory_bytes),
            memory: self.memory,
            cache: self.cache,
            clock: self.clock,
            counters: Counters::default(),
            moment: Moment::default(),
            config: self.config,
            holders: RwLock::default(),
            notes: Mutex::default(),
            me: me.clone(),
        })
    }
}

impl EmbeddedStore {
    /// Starts setting a store up: heap memory, no cache, no limit.
    pub fn builder() -> EmbeddedStoreBuilder {
        EmbeddedStoreBuilder {
            max_memory_bytes: u64::MAX,
            memory: Arc::new(HeapMemory),
            cache: None,
            clock: Arc::new(SystemClock::default()),
            config: SharingConfig::default(),
            claim_wait_max: CLAIM_WAIT_MAX,
            shards: SHARDS,
        }
    }

    /// Takes `bytes` from the budget, evicting what nobody leases if it must, and nothing if that would not do.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Arc<Charge>> {
        self.now();
        if let Some(charge) = self.budget.take(bytes) {
            return Ok(charge);
        }
        let mut survey = self.names.survey();
        let groups = candidates(std::mem::take(&mut survey.records));
        let freeable: u64 = groups.iter().map(|group| group.bytes).sum();
        if self.budget.used().saturating_sub(freeable).saturating_add(bytes) <= self.budget.max {
            for group in groups {
                // Others may have given memory back, or taken what was given, since the last look.
                if let Some(charge) = self.budget.take(bytes) {
                    return Ok(charge);
                }
                if group.close() {
                    self.counters.evictions.fetch_add(group.records.len() as u64, Ordering::Relaxed);
                    self.counters.evicted_bytes.fetch_add(group.bytes, Ordering::Relaxed);
                    self.drop_closed(&group.records);
                }
            }
        }
        drop(survey);
        self.budget.take(bytes).ok_or_else(|| self.over_budget(bytes))
    }

    fn over_budget(&self, bytes: u64) -> Error {
        let survey = self.names.survey();
        let mut by_holder: HashMap<u32, u64> = HashMap::new();
        for record in &survey.records {
            for (holder, _) in record.leases.holders() {
                *by_holder.entry(holder).or_default() += record.layout.size_bytes() as u64;
            }
        }
        let (used, max) = (self.budget.used(), self.budget.max);
        let unlisted = used.saturating_sub(charged_bytes(&survey.records));
        let mut held: Vec<(u64, String)> =
            by_holder.into_iter().map(|(holder, bytes)| (bytes, self.holder_name(holder).to_string())).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut held: Vec<String> = held.iter().take(5).map(|(bytes, name)| format!("{name} holds {bytes}")).collect();
        if unlisted > 0 {
            held.push(format!("private and unpublished tensors hold {unlisted}"));
        }
        let held = if held.is_empty() { "nothing is leased".to_owned() } else { held.join(", ") };
        Error::new(
            ErrorKind::OverBudget,
            format!("{bytes} bytes do not fit the budget of {max} bytes, of which {used} are in use ({held})"),
        )
    }

    pub(crate) fn drop_closed(&self, records: &[Arc<Record>]) {
        for record in records {
            self.names.forget(record);
            if let Some(key) = &record.key {
                self.claims.forget(key, record);
            }
        }
    }

    fn let_go(&self, record: &Arc<Record>) {
        record.let_go();
        self.forget(record);
    }

    /// The time, read from the clock.
    pub(crate) fn now(&self) -> Duration {
        let now = self.clock.now();
        self.moment.0.store(now.as_nanos() as u64, Ordering::Relaxed);
        now
    }

    fn home(&self) -> Result<Arc<dyn Home>> {
        let me = self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        Ok(me)
    }

    /// Makes a record visible under its name and leases it.
    pub(crate) fn list(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        charge: Arc<Charge>,
        key: Option<Key>,
        holder: u32,
    ) -> Result<Lease> {
        let name = spec.name.clone();
        let now = self.now();
        let home: Weak<dyn Home> = self.me.clone();
        let (record, superseded) = self.names.publish(&name, |id| {
            let record = Record::new(id, spec, layout, segment, false, key, charge, now, home);
            // Before anybody can see it: a tensor that is not kept must not go between publishing and leasing.
            record.leases.acquire(holder);
            Arc::new(record)
        });
        if let Some(superseded) = superseded {
            self.let_go(&superseded);
        }
        Ok(Lease { record, holder, layout: None })
    }

    fn reserve_as(&self, spec: TensorSpec, holder: &Holder, private: bool) -> Result<Reservation> {
        let layout = Layout::contiguous(spec.dtype, &spec.shape).map_err(|error| error.in_field(spec.name.as_str()))?;
        let bytes = layout.size_bytes() as u64;
        if !private && let Some(refusal) = self.config.refuses(spec.kind, bytes) {
            self.counters.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
            let message = format!("{} ({}, {bytes} bytes) is not shared: {}", spec.name, spec.kind, refusal.name());
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let charge = self.charge(bytes).map_err(|error| error.in_field(spec.name.as_str()))?;
        let segment = self.memory.reserve(layout.size_bytes())?;
        let (device, home) = (self.memory.device(), self.home()?);
        Ok(Reservation { spec, layout, segment, charge, holder: holder.clone(), private, device, home })
    }
}

impl Home for EmbeddedStore {
    fn publish(&self, reservation: Reservation, key: Option<Key>) -> Result<Lease> {
        let Reservation { spec, layout, segment, charge, holder, private, .. } = reservation;
        let segment = segment.freeze()?;
        if !private {
            return self.list(spec, layout, segment, charge, key, holder.id);
        }
        let home: Weak<dyn Home> = self.me.clone();
        let id = self.names.private_id();
        let record = Record::new(id, spec, layout, segment, true, None, charge, self.now(), home);
        record.leases.acquire(holder.id);
        Ok(Lease { record: Arc::new(record), holder: holder.id, layout: None })
    }

    fn forget(&self, record: &Arc<Record>) {
        if !record.private && record.leases.close() {
            self.drop_closed(std::slice::from_ref(record));
        }
    }

    fn finish(&self, key: Key, records: Vec<Weak<Record>>) {
        self.claims.finish(key, records);
    }

    fn abandon(&self, key: Key) {
        self.claims.abandon(key);
    }

    fn holder_name(&self, id: u32) -> Arc<str> {
        let holders = self.holders.read().unwrap_or_else(PoisonError::into_inner);
        holders.names.get(id as usize).cloned().unwrap_or_else(|| Arc::from("?"))
    }
}

impl Store for EmbeddedStore {
    fn holder(&self, name: &str) -> Holder {
        let found = {
            let holders = self.holders.read().unwrap_or_else(PoisonError::into_inner);
            holders.ids.get(name).map(|&id| Holder { id, name: Arc::clone(&holders.names[id as usize]) })
        };
        found.unwrap_or_else(|| {
            let mut holders = self.holders.write().unwrap_or_else(PoisonError::into_inner);
            let Holders { ids, names } = &mut *holders;
            let next = names.len() as u32;
            let id = *ids.entry(Arc::from(name)).or_insert_with_key(|name| {
                names.push(Arc::clone(name));
                next
            });
            Holder { id, name: Arc::clone(&names[id as usize]) }
        })
    }

    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        let take = |record: &Arc<Record>| {
            let lease = Lease::find(record, holder.id)?;
            record.used(Duration::from_nanos(self.moment.0.load(Ordering::Relaxed)));
            Some(lease)
        };
        self.names.find(name, take).ok_or_else(|| Error::not_found(format!("no tensor is named {name:?}")))
    }

    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        let take = |record: &Arc<Record>| Lease::take(record, holder.id);
        let lease = self.names.by_id(id, take);
        lease.ok_or_else(|| Error::not_found(format!("version {} of tensor {} is gone", id.version, id.slot)))
    }

    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, false)
    }

    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, true)
    }

    fn claim(&self, key: &Key, holder: &Holder) -> Result<Claim> {
        match self.claims.claim(*key, holder.id)? {
            Found::Ready(leases) => {
                self.counters.claim_hits.fetch_add(1, Ordering::Relaxed);
                let now = self.now();
                leases.iter().for_each(|lease| lease.record.used(now));
                Ok(Claim::Ready(leases))
            }
            Found::Mine => {
                self.counters.claim_misses.fetch_add(1, Ordering::Relaxed);
                Ok(Claim::Compute(Ticket { key: *key, home: self.me.clone(), open: true }))
            }
        }
    }

    fn is_computed(&self, key: &Key) -> bool {
        self.claims.is_ready(key)
    }

    fn contents(&self, specs: &[ContentSpec], source: &mut dyn ContentSource, holder: &Holder) -> Result<Vec<Lease>> {
        crate::contents::lease_contents(self, specs, source, holder)
    }

    fn recall(&self, key: &ContentHash) -> Option<Vec<u8>> {
        match &self.cache {
            Some(cache) => cache.recall(key),
            None => self.notes.lock().unwrap_or_else(PoisonError::into_inner).recall(key),
        }
    }

    fn remember(&self, key: &ContentHash, note: &[u8]) {
        match &self.cache {
            // A lost note costs time, never correctness.
            Some(cache) => drop(cache.remember(key, note)),
            None => self.notes.lock().unwrap_or_else(PoisonError::into_inner).remember(key, note),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let record = self.names.remove(name).ok_or_else(|| Error::not_found(format!("no tensor is named {name:?}")))?;
        self.let_go(&record);
        Ok(())
    }

    fn config(&self) -> &SharingConfig {
        &self.config
    }

    fn record_copy(&self, reason: CopyReason, bytes: usize) {
        let (count, total) = &self.counters.copies[reason as usize];
        count.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn optimize(&self) -> OptimizeReport {
        crate::report::optimize(self)
    }

    fn stats(&self) -> Stats {
        crate::report::stats(self)
    }

    fn recommendations(&self) -> Recommendations {
        crate::report::recommendations(self)
    }

    fn diagnostics(&self) -> Diagnostics {
        crate::report::diagnostics(self)
    }
}
