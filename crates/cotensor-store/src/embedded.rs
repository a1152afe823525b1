//! The store inside a process.

use crate::budget::{Budget, Charge};
use crate::claims::Claims;
use crate::config::Refusal;
use crate::copies::CopyLog;
use crate::evict::{Group, candidates, charged_bytes};
use crate::holders::Holders;
use crate::home::{Draft, Home, RecordParts};
use crate::names::{Names, SHARDS, Superseded};
use crate::notes::Notes;
use crate::record::Record;
use crate::spill::{Spilling, Whereabouts};
use crate::{
    Claim, Clock, ContentSource, ContentSpec, CopyReason, Diagnostics, Holder, Key, Lease, OptimizeReport,
    Recommendations, Reservation, Retention, SharingConfig, Spill, Stats, Store, SystemClock, TensorId, TensorSpec,
    Watch,
};
use cotensor_core::{ContentCache, ContentHash, Error, ErrorKind, HeapMemory, Layout, Memory, Result, Segment};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The longest that a claim waits for another's computation, unless the builder says otherwise.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(600);

/// How often a reservation looks again for memory that is on its way back: over a second in all.
#[cfg(not(target_family = "wasm"))]
pub(crate) const ROUNDS_MAX: u32 = 10_000;
/// On one thread nobody else is on the way.
#[cfg(target_family = "wasm")]
pub(crate) const ROUNDS_MAX: u32 = 2;

/// Lets others run: at first for as short as can be.
pub(crate) fn pause(round: u32) {
    if round < 100 || cfg!(target_family = "wasm") {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A store inside this process. Made by [`EmbeddedStore::builder`]; shared behind `Arc`.
pub struct EmbeddedStore {
    pub(crate) names: Names,
    pub(crate) claims: Claims,
    pub(crate) budget: Arc<Budget>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) cache: Option<Arc<dyn ContentCache>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    config: SharingConfig,
    holders: Holders,
    notes: Mutex<Notes>,
    pub(crate) watch: Option<Arc<dyn Watch>>,
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

/// Sets an [`EmbeddedStore`] up.
pub struct EmbeddedStoreBuilder {
    max_memory_bytes: u64,
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
            budget: Budget::new(self.max_memory_bytes),
            memory: self.memory,
            cache: self.cache,
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

    /// Takes `bytes` from the budget, evicting what nobody leases if it must, and nothing if that would not do.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Arc<Charge>> {
        for round in 0..ROUNDS_MAX {
            if let Some(charge) = self.budget.take(bytes) {
                return Ok(charge);
            }
            if !self.budget.will_fit(bytes, 0) && !self.evict(bytes)? {
                break;
            }
            if round > 0 {
                // A closed tensor goes with the last who touched it: another thread may be between giving its lease
                // back and letting go.
                pause(round);
            }
        }
        self.budget.take(bytes).ok_or_else(|| self.over_budget(bytes))
    }

    /// Evicts until `bytes` will fit; false, and nothing goes, when all that nobody leases would not make the room.
    ///
    /// # Errors
    /// `OverBudget` when what would have to be spilled cannot be.
    fn evict(&self, bytes: u64) -> Result<bool> {
        match &self.spilling {
            None => Ok(self.evict_all(bytes)),
            Some(spilling) => {
                let mut outcome = Ok(false);
                spilling.spill.blocking(&mut || outcome = self.evict_or_spill(spilling, bytes));
                outcome
            }
        }
    }

    /// As [`evict`](Self::evict), where what is worth it is spilled.
    fn evict_or_spill(&self, spilling: &Spilling, bytes: u64) -> Result<bool> {
        let _turn = spilling.turn();
        let groups = candidates(std::mem::take(&mut self.names.survey().records));
        if !self.budget.will_fit(bytes, groups.iter().map(|group| group.bytes).sum()) {
            return Ok(self.budget.will_fit(bytes, 0));
        }
        let mut failed = None;
        for group in groups {
            if self.budget.will_fit(bytes, 0) {
                return Ok(true);
            }
            match group.worth_spilling() {
                None => drop(self.evict_group(&group)),
                Some(segment) if failed.is_none() => {
                    failed = self.put_away(spilling, &group, segment).err();
                }
                // Others may be dropped still.
                Some(_) => {}
            }
        }
        match failed {
            Some(error) if !self.budget.will_fit(bytes, 0) => Err(self.not_spilled(bytes, &error)),
            _ => Ok(true),
        }
    }

    fn evict_group(&self, group: &Group) -> bool {
        let closed = group.close();
        if closed {
            self.counters.evictions.fetch_add(group.records.len() as u64, Ordering::Relaxed);
            self.counters.evicted_bytes.fetch_add(group.bytes, Ordering::Relaxed);
            self.drop_closed(&group.records);
        }
        closed
    }

    fn evict_all(&self, bytes: u64) -> bool {
        let mut survey = self.names.survey();
        let groups = candidates(std::mem::take(&mut survey.records));
        if !self.budget.will_fit(bytes, groups.iter().map(|group| group.bytes).sum()) {
            return false;
        }
        for group in groups {
            // Others may have given memory back, or taken what was given, since the last look.
            if self.budget.will_fit(bytes, 0) {
                break;
            }
            self.evict_group(&group);
        }
        true
    }

    pub(crate) fn over_budget(&self, bytes: u64) -> Error {
        let survey = self.names.survey();
        let mut by_holder: HashMap<u32, u64> = HashMap::new();
        for record in &survey.records {
            for (holder, _) in record.leases.holders() {
                *by_holder.entry(holder).or_default() += record.layout.size_bytes() as u64;
            }
        }
        let (used, max) = (self.budget.used(), self.budget.max());
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
        crate::sharing::log::tell_gone(records);
        for record in records {
            self.names.forget(record, |record| self.tell(|watch| watch.gone(record)));
            if let Some(key) = &record.key {
                self.claims.forget(key, record);
            }
        }
    }

    /// What the cache gave. Without the cache everything still works, so its errors are told in the diagnostics alone.
    pub(crate) fn unless_cache_fails<T>(&self, given: Result<T>) -> Option<T> {
        given
            .inspect_err(|error| {
                self.counters.cache_errors.fetch_add(1, Ordering::Relaxed);
                let mut last = self.counters.last_cache_error.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(error.to_string());
            })
            .ok()
    }

    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Watch)) {
        if let Some(watch) = &self.watch {
            what(&**watch);
        }
    }

    fn let_go(&self, record: &Arc<Record>) {
        record.let_go();
        self.forget(record);
    }

    /// No name means this any more.
    fn supersede(&self, superseded: Superseded) {
        match superseded {
            Superseded::Listed(record) => self.let_go(&record),
            Superseded::Away(away, id) => self.drop_away(&away, id),
        }
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
        let created = self.clock.now();
        let home: Weak<dyn Home> = self.me.clone();
        let (record, superseded) = self.names.publish(&name, |id| {
            let kept = matches!(spec.retention, Retention::Cached { .. });
            let parts = RecordParts { id, spec, layout, segment, charge, kept, private: None, key, created };
            let record = Record::new(parts, home);
            // Before anybody can see it: a tensor that is not kept must not go between publishing and leasing.
            record.leases.acquire(holder);
            self.tell(|watch| watch.listing(&record));
            record
        });
        if let Some(superseded) = superseded {
            self.supersede(superseded);
        }
        Ok(Lease { record, holder, look: None })
    }

    /// Refuses, and counts, what the configuration does not let be shared.
    pub(crate) fn refuse(&self, spec: &TensorSpec, bytes: u64) -> Result<()> {
        let Some(refusal) = self.config.refuses(spec.kind, bytes) else { return Ok(()) };
        self.counters.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
        let message = format!("{} ({}, {bytes} bytes) is not shared: {}", spec.name, spec.kind, refusal.name());
        Err(Error::new(ErrorKind::Refused, message))
    }

    fn reserve_as(&self, spec: TensorSpec, holder: &Holder, private: bool) -> Result<Reservation> {
        let layout = Layout::contiguous(spec.dtype, &spec.shape).map_err(|error| error.in_field(spec.name.as_str()))?;
        let bytes = layout.size_bytes() as u64;
        if !private {
            spec.check_names()?;
            self.refuse(&spec, bytes)?;
        }
        let charge = self.charge(bytes).map_err(|error| error.in_field(spec.name.as_str()))?;
        let segment = self.memory.reserve(layout.size_bytes())?;
        let (device, home) = (self.memory.device(), self.home()?);
        let (holder, tag) = (holder.clone(), Box::new(()));
        Ok(Reservation::new(Draft { spec, layout, segment, device, charge, holder, private, tag }, home))
    }
}

impl Home for EmbeddedStore {
    fn publish(&self, draft: Draft, key: Option<Key>) -> Result<Lease> {
        let Draft { spec, layout, segment, charge, holder, private, .. } = draft;
        let segment = segment.freeze()?;
        if !private {
            return self.list(spec, layout, segment, charge, key, holder.id);
        }
        let (id, created) = (self.names.private_id(), self.clock.now());
        let (id_of_holder, private) = (holder.id, Some(holder));
        let parts = RecordParts { id, spec, layout, segment, charge, kept: false, private, key: None, created };
        let record = Record::new(parts, self.me.clone());
        record.leases.acquire(id_of_holder);
        Ok(Lease { record, holder: id_of_holder, look: None })
    }

    fn forget(&self, record: &Arc<Record>) {
        if record.close() {
            self.drop_closed(std::slice::from_ref(record));
        }
    }

    fn finish(&self, key: Key, results: &[&Lease]) {
        self.claims.finish(key, results.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
        self.tell(|watch| watch.finished(&key, &results.iter().map(|lease| lease.id()).collect::<Vec<_>>()));
    }

    fn abandon(&self, key: Key) {
        self.tell(|watch| watch.abandoned(&key));
        self.claims.abandon(key);
    }

    fn holder_name(&self, id: u32) -> Arc<str> {
        self.holders.name(id)
    }

    fn copied(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.counters.copies.record(tensor, reason, bytes as u64, self.clock.now());
    }
}

impl Store for EmbeddedStore {
    fn holder(&self, name: &str) -> Holder {
        self.holders.holder(name, || {
            let survey = self.names.survey();
            let holders = survey.records.iter().flat_map(|record| record.leases.holders());
            holders.map(|(holder, _)| holder).collect::<HashSet<u32>>()
        })
    }

    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        // Before the lock: others wait for that.
        let now = self.clock.recent();
        let take = |record: &Arc<Record>| {
            let lease = Lease::find(record, holder.id)?;
            record.used(now);
            Some(lease)
        };
        let missing = || Error::not_found(format!("no tensor is named {name:?}"));
        match self.names.find(name, take) {
            Some(lease) => Ok(lease),
            None => {
                let find = || self.names.find(name, take);
                self.find_away(holder, || self.names.whereabouts(name), find)?.ok_or_else(missing)
            }
        }
    }

    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        let now = self.clock.recent();
        let take = |record: &Arc<Record>| {
            let lease = Lease::take(record, holder.id)?;
            record.used(now);
            Some(lease)
        };
        let lease = match self.names.by_id(id, take) {
            None => {
                let find = || self.names.by_id(id, take);
                self.find_away(holder, || self.names.whereabouts_of(id), find)?
            }
            lease => lease,
        };
        lease.ok_or_else(|| Error::not_found(format!("version {} of tensor {} is gone", id.version, id.slot)))
    }

    fn has(&self, id: TensorId) -> bool {
        self.names.by_id(id, |_| Some(())).is_some() || matches!(self.names.whereabouts_of(id), Whereabouts::Away(_))
    }

    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, false)
    }

    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, true)
    }

    fn claim(&self, key: &Key, holder: &Holder) -> Result<Claim> {
        let _back = self.bring_claim_back(key, holder);
        let found = self.claims.claim(*key, holder.id)?;
        Ok(self.claimed(*key, found))
    }

    fn is_computed(&self, key: &Key) -> bool {
        self.claims.is_ready(key) || self.claim_is_away(key)
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
            Some(cache) => drop(self.unless_cache_fails(cache.remember(key, note))),
            None => self.notes.lock().unwrap_or_else(PoisonError::into_inner).remember(key, note),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let hidden = |record: &Record| self.tell(|watch| watch.hidden(record));
        let removed = self.names.remove(name, hidden);
        self.supersede(removed.ok_or_else(|| Error::not_found(format!("no tensor is named {name:?}")))?);
        Ok(())
    }

    fn config(&self) -> &SharingConfig {
        &self.config
    }

    fn limit_memory(&self, max_bytes: u64) -> Result<()> {
        self.budget.set_max(max_bytes);
        if self.budget.used() > max_bytes {
            self.evict(0)?;
        }
        Ok(())
    }

    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.copied(tensor, reason, bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::DType;

    fn spec(name: &str, bytes: usize) -> TensorSpec {
        TensorSpec {
            retention: Retention::Cached { recompute: Duration::ZERO },
            ..TensorSpec::new(name, DType::U8, &[bytes])
        }
    }

    /// Another thread has given its lease back and not let go of the tensor yet.
    #[test]
    fn memory_on_its_way_back_is_waited_for() {
        let store = EmbeddedStore::builder().max_memory_bytes(100).build();
        let holder = store.holder("m");
        let lease = store.reserve(spec("a", 100), &holder).unwrap().publish().unwrap();
        let touched = Arc::clone(&lease.record);
        drop(lease);
        let (evicted, seen) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Lets go only once the eviction was seen, and some.
                seen.recv().unwrap();
                std::thread::sleep(Duration::from_millis(30));
                drop(touched);
            });
            scope.spawn(|| {
                while store.stats().total_tensors > 0 {
                    std::thread::yield_now();
                }
                evicted.send(()).unwrap();
            });
            store.reserve(spec("b", 100), &holder).unwrap();
        });
        assert_eq!((store.stats().evictions, store.stats().memory_usage_bytes), (1, 0));
    }
}
