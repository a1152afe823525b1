//! Memory to spill storage.

use super::{SpillState, SpilledSet, SpilledTensor};
use crate::EmbeddedStore;
use crate::backend::LeaseBackend;
use crate::budget::SpilledCharge;
use crate::eviction::Candidate;
use crate::names::{SpillOutcome, Unqueued};
use crate::types::CopyReason;
use cotensor_core::{HeapMemory, Memory, Result, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The speed at which spilled tensors are read, in bytes a second. A tensor that is recomputed faster is evicted
/// instead.
const READ_BYTES_PER_SECOND: f64 = (1u64 << 30) as f64;

/// Whether two segments are parts of one file.
#[cfg(unix)]
fn same_file(a: &dyn Segment, b: &dyn Segment) -> bool {
    let number = |segment: &dyn Segment| segment.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    number(a).is_some() && number(a) == number(b)
}

#[cfg(not(unix))]
fn same_file(_: &dyn Segment, _: &dyn Segment) -> bool {
    false
}

impl EmbeddedStore {
    /// The segment of a candidate that should be spilled. Two kinds of candidates are evicted instead: those whose
    /// recompute time is known and shorter than reading them back, and those on a device whose memory other
    /// processes make, which the store can neither read nor restore.
    pub(crate) fn worth_spilling<'a>(&self, candidate: &'a Candidate) -> Option<&'a Arc<dyn Segment>> {
        let recompute = candidate.recompute.as_secs_f64();
        let first = &candidate.records.first()?.segment;
        let same = |segment: &Arc<dyn Segment>| Arc::ptr_eq(segment, first) || same_file(&**segment, &**first);
        let is_cheap = recompute > 0.0 && recompute < candidate.bytes as f64 / READ_BYTES_PER_SECOND;
        let is_own = self.devices.memory(first.device()).is_ok();
        (is_own && !is_cheap && candidate.records.iter().all(|record| same(&record.segment))).then_some(first)
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
            let mut unqueued = Unqueued::default();
            self.names.spill(record, &spilled_set, |outcome| match outcome {
                SpillOutcome::Spilled => self.notify(|observer| observer.on_spill(record, &*spilled)),
                SpillOutcome::Removed { was_newest } => {
                    if was_newest {
                        unqueued = self.record_change(record.name(), None);
                    }
                    if let Some(key) = &record.key() {
                        state.results().remove(key);
                    }
                    self.notify(|observer| observer.on_free(record));
                }
            });
            drop(unqueued);
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
    pub(super) fn spilled_metadata(&self, tensors: &[SpilledTensor]) -> u64 {
        tensors.iter().map(|tensor| self.metadata_of(&tensor.spec)).sum()
    }
}
