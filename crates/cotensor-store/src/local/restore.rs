//! Restoring the tensors of a former store.

use crate::backend::{Charge, LeaseBackend, Record, RecordParts, VersionState};
use crate::budget::SegmentCharge;
use crate::local::LocalStore;
use crate::names::RestoredVersion;
use crate::persist::RestoredTensor;
use crate::spill::SpilledSet;
use crate::{Holder, Key, Lease, Retention, SpilledSegment, SpilledTensor, TensorId};
use cotensor_core::{Device, Error, Result};
use std::sync::{Arc, Weak};
use std::time::Duration;

impl LocalStore {
    /// Lists a tensor of a former store with the same [seed](crate::LocalStoreBuilder::seed), and leases it. A
    /// version that is not the newest, or not cached, is freed with its last lease. The time of a tensor that had no lease goes on, unless it is
    /// used. The observer is not called.
    ///
    /// # Errors
    /// `Invalid` when the layout reaches beyond the segment; `Conflict` when the version exists already, or its name
    /// has another id.
    pub fn restore(&self, tensor: RestoredTensor, holder: &Holder) -> Result<Lease> {
        let RestoredTensor { id, spec, layout, segment, charge, key, versions, state, created, left } = tensor;
        if layout.byte_range().end > segment.len() {
            return Err(Error::invalid(format!("{} reaches beyond its segment", spec.name)));
        }
        spec.check_device(&*segment)?;
        let (name, created) = (spec.name.clone(), self.created(created));
        let charge = self.devices.host().take_metadata_unchecked(&charge, self.metadata_of(&spec));
        let backend: Weak<dyn LeaseBackend> = self.me.clone();
        let left = left.filter(|_| spec.keep_for.is_some());
        let place = RestoredVersion { id, versions: versions.max(id.version), state };
        let record = self.names.restore(&name, place, || {
            let retained = state == VersionState::Published && matches!(spec.retention, Retention::Cached { .. });
            let parts = RecordParts { id, spec, layout, segment, charge, retained, private: None, key, created };
            let record = Record::new(parts, backend);
            record.leases.acquire(holder);
            record
        })?;
        if let Some(left) = left {
            self.ages.restore(id, left, self.clock.now());
        }
        Ok(Lease { record, holder: holder.clone(), reinterpreted: None })
    }

    /// The time of publication: `known` if that is given and not in the future, else now.
    pub(crate) fn created(&self, known: Option<Duration>) -> Duration {
        let now = self.clock.now();
        known.map_or(now, |known| known.min(now))
    }

    /// Makes restored tensors the results of a computation again.
    pub fn restore_claim(&self, key: Key, results: &[Lease]) {
        self.claims.finish(key, results.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
    }

    /// Gives no id up to `name_id` to a new name.
    pub fn skip_name_ids(&self, name_id: u64) {
        self.names.skip(name_id);
    }

    /// Takes the bytes of a segment from the budget of `device`, which a former store held, even beyond the limit, because
    /// it exists.
    ///
    /// # Errors
    /// `Unsupported` for a device that the store does not have.
    pub fn charge_existing(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        Ok(self.devices.budget(device)?.take_unchecked(device.allocated_bytes(bytes)))
    }

    /// Opens a segment again, so that tensors can be added.
    pub fn reopen_segment(&self, charge: &Arc<Charge>) -> SegmentCharge {
        SegmentCharge::new(Arc::clone(charge))
    }

    /// Leases one version of a name. The time of a restored tensor begins again with the end of this lease.
    ///
    /// # Errors
    /// `NotFound` when that version does not exist.
    pub fn lease_version(&self, name: &str, version: u64, holder: &Holder) -> Result<Lease> {
        let missing = || Error::not_found(format!("{name:?} has no version {version}"));
        let now = self.clock.recent();
        let take = |record: &Arc<Record>| {
            let lease = record.lease(holder)?;
            record.set_last_used(now);
            Some(lease)
        };
        self.names.version(name, version, take).ok_or_else(missing)
    }

    /// The newest version of a name, unless it is spilled.
    pub fn newest(&self, name: &str) -> Option<TensorId> {
        self.names.current(name)
    }

    /// Lists the tensors of a segment that a former store with the same [seed](crate::LocalStoreBuilder::seed)
    /// spilled, each with the number of versions of its name. The [`StoreObserver`](crate::StoreObserver) is not
    /// called.
    ///
    /// # Errors
    /// `Conflict` when one of the names exists already.
    pub fn restore_spilled(&self, tensors: Vec<(SpilledTensor, u64)>, segment: Arc<dyn SpilledSegment>) -> Result<()> {
        let now = self.clock.now();
        let created = |tensor: &SpilledTensor| Some(self.created(tensor.created));
        let (tensors, versions): (Vec<_>, Vec<u64>) = tensors
            .into_iter()
            .map(|(tensor, versions)| (SpilledTensor { created: created(&tensor), ..tensor }, versions))
            .unzip();
        let metadata = self.spilled_charge(&tensors);
        let set = Arc::new(SpilledSet::new(segment, tensors, metadata));
        for (tensor, versions) in set.tensors.iter().zip(versions) {
            self.names.restore_spilled(&tensor.spec.name, tensor.id, versions, &set)?;
            self.ages.count_spilled(tensor, now);
        }
        Ok(())
    }

    /// Makes tensors, of which at least one is spilled, the results of a computation again.
    pub fn restore_spilled_claim(&self, key: Key, results: Vec<TensorId>) {
        if let Some(state) = &self.spill {
            state.results().insert(key, results);
        }
    }
}
