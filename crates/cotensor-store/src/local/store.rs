//! The implementation of the store traits.

use crate::backend::{LeaseBackend, RecordParts, StoreBackend, UnpublishedTensor};
use crate::budget::TensorCharge;
use crate::eviction::Want;
use crate::leases::Record;
use crate::local::LocalStore;
use crate::names::{NameEntry, Superseded, Unqueued};
use crate::reports::{Figures, Freed};
use crate::spill::Location;
use crate::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Diagnostics, Expected, Holder, Key, Lease,
    MemoryControl, OptimizeReport, Publication, Recommendations, Reservation, Retention, SharingConfig, Stats,
    StoreReports, TensorId, TensorSpec, TensorStore,
};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Device, Error, ErrorKind, Layout, Memory, Result, Segment, SegmentMut, size};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl LocalStore {
    /// Removes closed records from the store.
    pub(crate) fn free_closed(&self, records: &[Arc<Record>]) {
        crate::log::log_freed(records);
        for record in records {
            let mut unqueued = Unqueued::default();
            self.names.forget(record, |record, was_newest| {
                if was_newest {
                    unqueued = self.record_change(record.name(), None);
                }
                self.notify(|observer| observer.on_free(record));
            });
            drop(unqueued);
            if record.keep_for().is_some() {
                self.ages.forget(record.id);
            }
            if let Some(key) = &record.key() {
                self.claims.forget(key, record);
                if let Some(state) = &self.spill {
                    state.forget_result(key, record.id);
                }
            }
        }
    }

    /// Reports a new version of a name, or without one its removal, to the callers that watch it. Called while the name is locked.
    pub(crate) fn record_change(&self, name: &str, version: Option<&Arc<Record>>) -> Unqueued {
        self.changes.record(name, version.map(|record| record.id));
        self.queues.add(name, version)
    }

    fn release_name(&self, record: &Arc<Record>) {
        record.stop_retaining();
        self.release(record);
    }

    /// Releases a version that lost its name.
    fn supersede(&self, superseded: Superseded) {
        match superseded {
            Superseded::InMemory(record) => self.release_name(&record),
            Superseded::Spilled(set, id) => self.free_spilled(&set, id),
        }
    }

    /// Removes a name if `is_meant` is true of its entry. Returns whether the name was removed.
    pub(crate) fn remove_if(&self, name: &str, is_meant: impl FnOnce(&NameEntry) -> bool) -> bool {
        let mut unqueued = Unqueued::default();
        let removed = self.names.remove(name, is_meant, |in_memory| {
            unqueued = self.record_change(name, None);
            if let Some(record) = in_memory {
                self.notify(|observer| observer.on_unlist(record));
            }
        });
        drop(unqueued);
        removed.map(|superseded| self.supersede(superseded)).is_some()
    }

    /// What the reports are made of.
    fn figures(&self) -> Figures<'_> {
        Figures {
            names: &self.names,
            devices: &self.devices,
            counters: &self.counters,
            now: self.clock.now(),
            started: self.started,
        }
    }

    fn backend(&self) -> Result<Arc<dyn StoreBackend>> {
        let me = self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        Ok(me)
    }

    /// Publishes a record under its name and leases it.
    ///
    /// # Errors
    /// `Conflict` when the name has another newest version than the expected one.
    pub(crate) fn publish_named(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        charge: TensorCharge,
        Publication { key, expected }: Publication,
        holder: &Holder,
    ) -> Result<Lease> {
        let name = spec.name.clone();
        self.free_due();
        let created = self.clock.now();
        let backend: Weak<dyn StoreBackend> = self.me.clone();
        let mut unqueued = Unqueued::default();
        let (record, superseded) = self.names.publish(&name, expected, |id| {
            let retained = matches!(spec.retention, Retention::Cached { .. });
            let parts = RecordParts { id, spec, layout, segment, charge, retained, private: None, key, created };
            let record = Record::new(parts, backend);
            // Leased before it can be found: else a tensor that is not retained could be freed before its first lease.
            record.leases.acquire(holder);
            self.notify(|observer| observer.on_publish(&record));
            unqueued = self.record_change(&name, Some(&record));
            record
        })?;
        drop(unqueued);
        if let Some(superseded) = superseded {
            self.supersede(superseded);
        }
        Ok(Lease { record, holder: holder.clone(), reinterpreted: None })
    }

    /// Refuses a tensor that the configuration does not share, and counts that.
    pub(crate) fn refuse(&self, spec: &TensorSpec, bytes: u64) -> Result<()> {
        let Some(refusal) = self.config.refuses(spec.kind, bytes) else { return Ok(()) };
        self.counters.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
        let message = format!("{} ({}, {}) is not shared: {}", spec.name, spec.kind, size(bytes), refusal.name());
        Err(Error::new(ErrorKind::Refused, message))
    }

    fn reserve_as(
        &self,
        spec: TensorSpec,
        holder: &Holder,
        private: bool,
        memory: impl FnOnce(&dyn Memory, usize) -> Result<Box<dyn SegmentMut>>,
    ) -> Result<Reservation> {
        let layout = spec.layout().map_err(|error| error.in_field(spec.name.as_str()))?;
        let bytes = layout.size_bytes() as u64;
        if !private {
            spec.check_names()?;
            self.refuse(&spec, bytes)?;
        }
        let charge = self
            .charge(spec.device, bytes)
            .and_then(|segment| if private { Ok(segment.into()) } else { self.tensor_charge(&segment, &spec) });
        let charge = charge.map_err(|error| error.in_field(spec.name.as_str()))?;
        let segment = memory(self.devices.memory(spec.device)?, layout.size_bytes())?;
        let (backend, holder, tag) = (self.backend()?, holder.clone(), Box::new(()));
        let expected = Expected::Any;
        let tensor = UnpublishedTensor { spec, layout, segment, charge, holder, private, expected, tag };
        Ok(Reservation::new(tensor, backend))
    }
}

impl StoreBackend for LocalStore {
    fn publish(&self, draft: UnpublishedTensor, key: Option<Key>) -> Result<Lease> {
        let UnpublishedTensor { spec, layout, segment, charge, holder, private, expected, .. } = draft;
        let segment = segment.freeze()?;
        if !private {
            return self.publish_named(spec, layout, segment, charge, Publication { key, expected }, &holder);
        }
        let (id, created) = (self.names.private_id(), self.clock.now());
        let private = Some(holder.clone());
        let parts = RecordParts { id, spec, layout, segment, charge, retained: false, private, key: None, created };
        let record = Record::new(parts, self.me.clone());
        record.leases.acquire(&holder);
        Ok(Lease { record, holder, reinterpreted: None })
    }

    fn finish_computation(&self, key: Key, results: &[&Lease]) {
        self.claims.finish(key, results.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
        self.notify(|observer| observer.on_results(&key, &results.iter().map(|lease| lease.id()).collect::<Vec<_>>()));
    }

    fn abandon_computation(&self, key: Key) {
        self.notify(|observer| observer.on_abandon(&key));
        self.claims.abandon(key);
    }
}

impl LeaseBackend for LocalStore {
    fn release(&self, record: &Arc<Record>) {
        if record.close() {
            self.free_closed(std::slice::from_ref(record));
        }
    }

    fn left(&self, record: &Arc<Record>) {
        let Some(since) = self.ages.count(record, self.clock.now()) else { return };
        // The thread that frees a record first removes it from the names and then forgets its age. Freed before this count, it is forgotten here.
        if record.is_closed() && !self.has(record.id) {
            return self.ages.forget(record.id);
        }
        self.notify(|observer| observer.on_left(record, since));
    }

    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.counters.copies.record(tensor, reason, bytes as u64, self.clock.now());
    }
}

impl TensorStore for LocalStore {
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        // Read before the lock, for which other threads wait.
        let now = self.clock.recent();
        let take = |record: &Arc<Record>| {
            let lease = record.lease_on_lookup(holder)?;
            record.set_last_used(now);
            Some(lease)
        };
        let missing = || Error::not_found(format!("no tensor is named {name:?}"));
        match self.names.find(name, take) {
            Some(lease) => Ok(lease),
            None => {
                let find = || self.names.find(name, take);
                self.find_spilled(holder, || self.names.location(name), find)?.ok_or_else(missing)
            }
        }
    }

    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        let now = self.clock.recent();
        let take = |record: &Arc<Record>| {
            let lease = record.lease(holder)?;
            record.set_last_used(now);
            Some(lease)
        };
        let lease = match self.names.by_id(id, take) {
            None => {
                let find = || self.names.by_id(id, take);
                self.find_spilled(holder, || self.names.location_of(id), find)?
            }
            lease => lease,
        };
        lease.ok_or_else(|| {
            Error::not_found(format!("version {} of tensor {} was freed or never existed", id.version, id.name_id))
        })
    }

    fn has(&self, id: TensorId) -> bool {
        self.names.by_id(id, |_| Some(())).is_some() || matches!(self.names.location_of(id), Location::Spilled(_))
    }

    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, false, |memory, len| memory.reserve(len))
    }

    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, false, |memory, len| memory.reserve_aliased(len))
    }

    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, true, |memory, len| memory.reserve(len))
    }

    fn remove_version(&self, name: &str, id: Option<TensorId>) -> Result<()> {
        let is_meant = |entry: &NameEntry| id.is_none_or(|id| entry.newest() == Some(id));
        let missing = || Error::not_found(format!("no tensor is named {name:?}"));
        if self.remove_if(name, is_meant) { Ok(()) } else { Err(missing()) }
    }
}

impl ComputationStore for LocalStore {
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim> {
        let _restored = self.restore_results(key, holder);
        let found = self.claims.claim(*key, holder, wait)?;
        Ok(self.claimed(*key, found))
    }

    fn is_computed(&self, key: &Key) -> bool {
        self.claims.is_ready(key) || self.has_spilled_results(key)
    }
}

impl BlobStore for LocalStore {
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>> {
        super::blobs::lease_blobs(self, specs, source, holder)
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        match &self.cache {
            Some(cache) => cache.get_note(key),
            None => lock(&self.notes).get_note(key),
        }
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) {
        match &self.cache {
            Some(cache) => drop(self.counters.unless_cache_fails(cache.put_note(key, note))),
            None => lock(&self.notes).put_note(key, note),
        }
    }
}

impl MemoryControl for LocalStore {
    fn prefault(&self, device: Device, bytes: usize, count: usize) -> Result<usize> {
        self.devices.memory(device)?.prefault(bytes, count)
    }

    fn limit_memory(&self, device: Device, max_bytes: u64) -> Result<()> {
        let budget = self.devices.budget(device)?;
        budget.set_max(max_bytes);
        if budget.total() > max_bytes {
            self.evict(budget, 0, Want::Memory)?;
        }
        Ok(())
    }

    fn optimize(&self) -> OptimizeReport {
        let before = self.devices.used();
        let mut freed = Freed::default();
        self.with_all_unleased(&mut |candidates| {
            for candidate in candidates.iter().filter(|candidate| candidate.close()) {
                self.free_closed(&candidate.records);
                freed.add(candidate);
            }
        });
        freed.report(before, self.devices.used(), self.names.survey().records.len())
    }
}

impl StoreReports for LocalStore {
    fn config(&self) -> &SharingConfig {
        &self.config
    }

    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.count_copy(tensor, reason, bytes);
    }

    fn stats(&self) -> Stats {
        self.figures().stats()
    }

    fn recommendations(&self) -> Recommendations {
        self.figures().recommendations()
    }

    fn diagnostics(&self) -> Diagnostics {
        self.figures().diagnostics()
    }
}
