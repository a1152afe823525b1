//! Spill storage to memory.

use crate::backend::{LeaseBackend, Record, RecordParts};
use crate::budget::Charge;
use crate::eviction::{ROUNDS_MAX, pause};
use crate::local::LocalStore;
use crate::spill::{Location, SpilledSegment, SpilledSet, SpilledTensor};
use crate::{CopyReason, Holder, Key, Lease, TensorId, TensorStore};
use cotensor_core::{Error, ErrorKind, Result, Segment};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl LocalStore {
    /// Repeats a lookup that failed, after restoring the tensor if it is spilled. `None` when it does not exist.
    pub(crate) fn find_spilled(
        &self,
        holder: &Holder,
        location: impl Fn() -> Location,
        find: impl Fn() -> Option<Lease>,
    ) -> Result<Option<Lease>> {
        let Some(state) = &self.spill else { return Ok(None) };
        if matches!(location(), Location::Absent) {
            return Ok(None);
        }
        let mut found = Ok(None);
        let mut round = 0;
        state.storage.blocking(&mut || {
            while round < ROUNDS_MAX {
                round += 1;
                let restored = match location() {
                    Location::Absent => return,
                    Location::Closing => {
                        pause(round);
                        Ok(Vec::new())
                    }
                    Location::Spilled(set) => self.restore_set(&set, holder),
                };
                // The leases are held during the lookup: without them another thread could spill the tensor again.
                found = restored.map(|_leases| find());
                if !matches!(found, Ok(None)) {
                    return;
                }
            }
        });
        found
    }

    /// Restores the tensors of a set. While the returned leases exist, the tensors are not spilled again.
    fn restore_set(&self, set: &Arc<SpilledSet>, holder: &Holder) -> Result<Vec<Lease>> {
        let mut segment = set.segment();
        // Another thread has restored the set.
        let Some(spilled) = segment.as_ref() else { return Ok(Vec::new()) };
        // Nothing is evicted for a segment that cannot be read.
        let room = spilled.check().and_then(|()| self.restored_charge(set.device(), set.bytes));
        let restored = match room {
            Ok(charge) => {
                let segment = self.read_segment(set, &**spilled);
                segment.and_then(|segment| self.list_restored(set, &segment, &charge, holder))
            }
            Err(refused) if refused.kind() == ErrorKind::OverBudget => self.swap_in(set, &mut segment, holder, refused),
            Err(error) => Err(error),
        };
        match restored {
            Ok(leases) => {
                *segment = None;
                self.counters.restores.fetch_add(leases.len() as u64, Ordering::Relaxed);
                Ok(leases)
            }
            Err(error) => {
                set.note_lost(&error);
                Err(error.in_field(set.name()))
            }
        }
    }

    /// Lists the tensors of a restored segment.
    pub(super) fn list_restored(
        &self,
        set: &Arc<SpilledSet>,
        segment: &Arc<dyn Segment>,
        charge: &Arc<Charge>,
        holder: &Holder,
    ) -> Result<Vec<Lease>> {
        if let Some(tensor) = set.tensors.iter().find(|tensor| tensor.layout.byte_range().end > segment.len()) {
            return Err(Error::corrupt(format!("{} reaches beyond its spilled segment", tensor.spec.name)));
        }
        let mut leases = Vec::with_capacity(set.tensors.len());
        for tensor in &set.tensors {
            let SpilledTensor { id, spec, layout, key, created, left: _ } = tensor.clone();
            let backend: Weak<dyn LeaseBackend> = self.me.clone();
            let (segment, created) = (Arc::clone(segment), self.created(created));
            let charge = self.devices.host().take_metadata_unchecked(charge, self.metadata_of(&spec));
            // A tensor whose name was published or removed meanwhile stays away.
            let record = self.names.unspill(&tensor.spec.name, id, set, || {
                let parts =
                    RecordParts { id, spec, layout, segment, charge, retained: true, private: None, key, created };
                let record = Record::new(parts, backend);
                record.leases.acquire(holder);
                self.notify(|observer| observer.on_publish(&record));
                record
            });
            record.iter().for_each(|record| self.ages.resume(record, self.clock.now()));
            leases.extend(record.map(|record| Lease { record, holder: holder.clone(), reinterpreted: None }));
        }
        Ok(leases)
    }

    /// Reads a segment. Where a resource other than memory is exhausted, it spills others first.
    fn read_segment(&self, set: &SpilledSet, spilled: &dyn SpilledSegment) -> Result<Arc<dyn Segment>> {
        let is_exhausted =
            |read: &Result<_>| read.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::OverBudget);
        let mut read = spilled.restore();
        if is_exhausted(&read) {
            self.shed_until(&mut || {
                read = spilled.restore();
                !is_exhausted(&read)
            })?;
        }
        self.move_to_device(set, read?)
    }

    /// The segment itself if it is on the device of `set`, else a copy there, which is counted.
    pub(super) fn move_to_device(&self, set: &SpilledSet, segment: Arc<dyn Segment>) -> Result<Arc<dyn Segment>> {
        /// Bytes that are copied at a time.
        const PIECE_BYTES: usize = 1 << 20;
        if segment.device() == set.device() {
            return Ok(segment);
        }
        let mut copy = self.devices.memory(set.device())?.reserve(segment.len())?;
        let mut piece = vec![0; segment.len().min(PIECE_BYTES)];
        for offset in (0..segment.len()).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(segment.len() - offset)];
            segment.read_at(offset, piece)?;
            copy.write_at(offset, piece)?;
        }
        self.count_copy(set.name(), CopyReason::DeviceTransfer, segment.len());
        copy.freeze()
    }

    /// Restores the spilled results of a computation, and makes them its results again while the leases exist. Returns none if one of them
    /// cannot be read: then all are computed again. If another attempt may read them (`OverBudget`, `Io`), they stay until the
    /// new ones take their place.
    pub(crate) fn restore_results(&self, key: &Key, holder: &Holder) -> Vec<Lease> {
        let Some(state) = &self.spill else { return Vec::new() };
        let Some(results) = state.results().get(key).cloned() else { return Vec::new() };
        let leases: Result<Vec<Lease>> = results.iter().map(|id| self.lease(*id, holder)).collect();
        let leases = match leases {
            Ok(leases) => leases,
            Err(error) if SpilledSet::is_lost(&error) => Vec::new(),
            Err(_) => return Vec::new(),
        };
        if !leases.is_empty() {
            self.claims.restore(*key, leases.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
        }
        // Removed last: a claim that comes meanwhile finds the results here or there.
        state.forget_results(key, &results);
        leases
    }

    pub(crate) fn has_spilled_results(&self, key: &Key) -> bool {
        self.spill.as_ref().is_some_and(|state| state.results().contains_key(key))
    }

    /// A spilled version was superseded or removed.
    pub(crate) fn free_spilled(&self, set: &SpilledSet, id: TensorId) {
        self.ages.forget(id);
        self.notify(|observer| observer.on_spilled_free(id));
        if let (Some(state), Some(tensor)) = (&self.spill, set.tensor(id))
            && let Some(key) = &tensor.key
        {
            state.forget_result(key, id);
        }
    }
}
