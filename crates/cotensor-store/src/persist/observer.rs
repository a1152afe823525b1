//! Being told what a store lists, and taking up what a former one listed: for a service whose tensors outlive it.

use crate::SegmentCharge;
use crate::backend::{Charge, Record, RecordParts, StoreBackend, VersionState};
use crate::embedded::check_device;
use crate::names::RestoredVersion;
use crate::{EmbeddedStore, Holder, Key, Lease, Retention, SpilledSegment, TensorId, TensorSpec};
use cotensor_core::{Device, Error, Layout, Result, Segment};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Told of every change, while the name concerned is locked: changes of one name come in their order, before anybody
/// can act on them. Must not call the store.
pub trait StoreObserver: Send + Sync {
    /// This becomes the newest version of its name.
    fn on_publish(&self, record: &Record);

    /// This can no longer be found by its name, though it may still be leased.
    fn on_unlist(&self, record: &Record);

    /// This is out of the store.
    fn on_free(&self, record: &Record);

    /// The memory of this, which is leased by nobody, went to `spilled`. When it comes back, it is
    /// [listed](StoreObserver::on_publish) anew.
    fn on_spill(&self, record: &Record, spilled: &dyn SpilledSegment);

    /// This is out of the store, from where it was spilled to.
    fn on_spilled_free(&self, id: TensorId);

    /// These are the results of a claim, all of them listed.
    fn on_results(&self, key: &Key, results: &[TensorId]);

    /// A claim is given up: others can have it from now on.
    fn on_abandon(&self, key: &Key);

    /// What keeps memory for now beside those who lease it, if anything does: told to whoever finds no room.
    fn retained_memory(&self) -> Option<String> {
        None
    }
}

/// A tensor that a former store listed.
pub struct RestoredTensor {
    /// Which it was, and is again.
    pub id: TensorId,
    /// What was published.
    pub spec: TensorSpec,
    /// How its elements lie in the segment.
    pub layout: Layout,
    /// Its memory.
    pub segment: Arc<dyn Segment>,
    /// What its segment takes from the budget; shared by all tensors of the segment.
    pub charge: Arc<Charge>,
    /// The claim whose result it was part of.
    pub key: Option<Key>,
    /// How many versions its name had.
    pub versions: u64,
    /// What it was to its name; not spilled.
    pub state: VersionState,
    /// When it was published, by the clock that this store and the former one have in common; now if that is not known.
    pub created: Option<Duration>,
}

impl EmbeddedStore {
    /// Lists a tensor as a former store of the same [seed](crate::EmbeddedStoreBuilder::seed) did, and leases it. A
    /// version that is not current, or not to be retained, goes with its last lease. The [`StoreObserver`] is not told.
    ///
    /// # Errors
    /// `Invalid` when the layout reaches beyond the segment; `Conflict` when the version is there already, or its name
    /// in another slot.
    pub fn restore(&self, tensor: RestoredTensor, holder: &Holder) -> Result<Lease> {
        let RestoredTensor { id, spec, layout, segment, charge, key, versions, state, created } = tensor;
        if layout.byte_range().end > segment.len() {
            return Err(Error::invalid(format!("{} reaches beyond its segment", spec.name)));
        }
        check_device(&spec, &*segment)?;
        let (name, created) = (spec.name.clone(), self.created(created));
        let charge = self.devices.host().take_metadata_unchecked(&charge, self.metadata_of(&spec));
        let home: Weak<dyn StoreBackend> = self.me.clone();
        let place = RestoredVersion { id, versions: versions.max(id.version), state };
        let record = self.names.restore(&name, place, || {
            let retained = state == VersionState::Published && matches!(spec.retention, Retention::Cached { .. });
            let parts = RecordParts { id, spec, layout, segment, charge, retained, private: None, key, created };
            let record = Record::new(parts, home);
            record.leases.acquire(holder.id);
            record
        })?;
        Ok(Lease { record, holder: holder.id, reinterpreted: None })
    }

    /// When something was made that may say so itself; nothing is of the future.
    pub(crate) fn created(&self, said: Option<Duration>) -> Duration {
        let now = self.clock.now();
        said.map_or(now, |said| said.min(now))
    }

    /// Makes restored tensors the results of a claim again.
    pub fn restore_claim(&self, key: Key, results: &[Lease]) {
        self.claims.finish(key, results.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
    }

    /// From now on no slot up to `slot` is given to a new name.
    pub fn skip_slots(&self, slot: u64) {
        self.names.skip(slot);
    }

    /// Takes `bytes` from the budget of `device` for a segment that a former store held, even if there is no room: it
    /// exists.
    ///
    /// # Errors
    /// `Unsupported` for a device that the store does not have.
    pub fn charge_existing(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        Ok(self.devices.budget(device)?.take_unchecked(bytes))
    }

    /// A share in a segment that has its charge already.
    pub fn reopen_segment(&self, charge: &Arc<Charge>) -> SegmentCharge {
        SegmentCharge::new(Arc::clone(charge))
    }

    /// Leases one version by its name.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn lease_version(&self, name: &str, version: u64, holder: &Holder) -> Result<Lease> {
        let missing = || Error::not_found(format!("{name:?} has no version {version}"));
        self.names.version(name, version, |record| Lease::take(record, holder.id)).ok_or_else(missing)
    }

    /// The version that a name means.
    pub fn newest(&self, name: &str) -> Option<TensorId> {
        self.names.current(name)
    }
}
