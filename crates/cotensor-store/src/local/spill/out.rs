//! Memory to spill storage.

use crate::backend::LeaseBackend;
use crate::budget::SpilledCharge;
use crate::eviction::Candidate;
use crate::local::LocalStore;
use crate::names::{SpillOutcome, Unqueued};
use crate::spill::{SpillState, SpilledSet, SpilledTensor};
use crate::types::CopyReason;
use cotensor_core::{HeapMemory, Memory, Result, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl LocalStore {
    /// The segment of a candidate that should be spilled. Evicted instead are those that are [cheap to compute](Candidate::spillable), and those
    /// on a device whose memory other processes make, which the store can neither read nor restore.
    pub(crate) fn worth_spilling<'a>(&self, candidate: &'a Candidate) -> Option<&'a Arc<dyn Segment>> {
        candidate.spillable().filter(|segment| self.devices.memory(segment.device()).is_ok())
    }

    /// Spills the segment of an unleased candidate; false when a lease was taken meanwhile.
    pub(crate) fn spill_candidate(
        &self,
        state: &SpillState,
        candidate: &Candidate,
        segment: &Arc<dyn Segment>,
    ) -> Result<bool> {
        let tensors = candidate.records.iter().map(|record| SpilledTensor::of(record)).collect::<Result<Vec<_>>>()?;
        // The content is immutable, so it is written before the candidate is closed.
        let spilled = if segment.device().is_host() {
            state.storage.spill(&**segment)?
        } else {
            state.storage.spill(&*self.copy_to_host(candidate, &**segment)?)?
        };
        if !candidate.close() {
            return Ok(false);
        }
        let metadata = self.spilled_charge(&tensors);
        let spilled_set = Arc::new(SpilledSet::new(Arc::clone(&spilled), tensors, metadata));
        for record in &candidate.records {
            if let Some(key) = &record.key()
                && let Some(results) = self.claims.results(key)
            {
                state.results().insert(*key, results);
            }
            let (mut unqueued, mut is_removed) = (Unqueued::default(), false);
            self.names.spill(record, &spilled_set, |outcome| match outcome {
                SpillOutcome::Spilled => self.notify(|observer| observer.on_spill(record, &*spilled)),
                SpillOutcome::Removed { was_newest } => {
                    is_removed = true;
                    if was_newest {
                        unqueued = self.record_change(record.name(), None);
                    }
                    if let Some(key) = &record.key() {
                        state.forget_result(key, record.id);
                    }
                    self.notify(|observer| observer.on_free(record));
                }
            });
            drop(unqueued);
            if is_removed && record.keep_for().is_some() {
                self.ages.forget(record.id);
            }
            if let Some(key) = &record.key() {
                self.claims.forget(key, record);
            }
        }
        self.counters.spills.fetch_add(candidate.records.len() as u64, Ordering::Relaxed);
        self.counters.spilled_bytes.fetch_add(spilled.bytes(), Ordering::Relaxed);
        Ok(true)
    }

    /// Copies a device's segment to the host. The copy is counted.
    fn copy_to_host(&self, candidate: &Candidate, segment: &dyn Segment) -> Result<Arc<dyn Segment>> {
        let mut copy = HeapMemory.reserve(segment.len())?;
        if let Some(bytes) = copy.bytes_mut() {
            segment.read_at(0, bytes)?;
        }
        let name = candidate.records.first().map(|record| record.name()).unwrap_or_default();
        self.count_copy(name, CopyReason::DeviceTransfer, segment.len());
        copy.freeze()
    }

    pub(crate) fn spilled_charge(&self, tensors: &[SpilledTensor]) -> SpilledCharge {
        self.devices.host().take_spilled_unchecked(self.spilled_metadata(tensors))
    }

    /// The metadata of spilled tensors, in bytes.
    pub(crate) fn spilled_metadata(&self, tensors: &[SpilledTensor]) -> u64 {
        tensors.iter().map(|tensor| self.metadata_of(&tensor.spec)).sum()
    }
}
