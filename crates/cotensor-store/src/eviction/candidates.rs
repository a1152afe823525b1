//! The order of eviction.

use super::want::Want;
use crate::budget::Budget;
use crate::leases::Record;
use cotensor_core::Segment;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The speed at which spilled tensors are read, in bytes a second. A tensor that is recomputed faster is evicted
/// instead.
const READ_BYTES_PER_SECOND: f64 = (1u64 << 30) as f64;

/// The tensors of one segment, which are evicted together; or one tensor of a segment that stays, such as an open slab,
/// whose eviction returns its metadata alone.
pub(crate) struct Candidate {
    pub(crate) records: Vec<Arc<Record>>,
    /// The bytes of the budget that their memory takes.
    pub(crate) bytes: u64,
    /// The bytes of the budget that their metadata takes.
    pub(crate) metadata: u64,
    /// Whether the segment stays.
    pub(crate) is_partial: bool,
    pub(crate) recompute: Duration,
    last_used: Duration,
}

impl Candidate {
    fn of(mut records: Vec<Arc<Record>>, is_partial: bool) -> Self {
        // Each thread closes the tensors of a segment in this order, and so no two threads wait for each other.
        records.sort_unstable_by_key(|record| record.id);
        let bytes = records.first().filter(|_| !is_partial).map_or(0, |record| record.charge.segment().bytes);
        Self {
            bytes,
            metadata: records.iter().map(|record| record.charge.metadata()).sum(),
            is_partial,
            recompute: records.iter().map(|record| record.recompute_time()).sum(),
            last_used: records.iter().map(|record| record.last_used()).max().unwrap_or_default(),
            records,
        }
    }

    /// Whether its memory is counted in `budget`.
    pub(crate) fn is_of(&self, budget: &Arc<Budget>) -> bool {
        self.records.first().is_some_and(|record| Arc::ptr_eq(record.charge.segment().budget(), budget))
    }

    /// Recompute time for each byte, in seconds.
    fn cost(&self) -> f64 {
        self.recompute.as_secs_f64() / (self.bytes + self.metadata).max(1) as f64
    }

    /// The segment, if all tensors are in one that is better spilled than computed again. A tensor whose recompute time is known and shorter
    /// than reading it back is evicted instead.
    pub(crate) fn spillable(&self) -> Option<&Arc<dyn Segment>> {
        let recompute = self.recompute.as_secs_f64();
        let first = &self.records.first()?.segment;
        let same = |segment: &Arc<dyn Segment>| Arc::ptr_eq(segment, first) || same_file(&**segment, &**first);
        let is_cheap = recompute > 0.0 && recompute < self.bytes as f64 / READ_BYTES_PER_SECOND;
        (!is_cheap && self.records.iter().all(|record| same(&record.segment))).then_some(first)
    }

    /// Closes all tensors of the candidate, or none.
    pub(crate) fn close(&self) -> bool {
        Record::close_all(&self.records.iter().map(|record| &**record).collect::<Vec<_>>())
    }
}

/// The candidates in the order of eviction: by recompute time for each byte, then by last use, then by age. `records` have
/// no leases.
pub(crate) fn candidates(records: Vec<Arc<Record>>) -> Vec<Candidate> {
    let mut segments: HashMap<usize, Vec<Arc<Record>>> = HashMap::new();
    for record in records {
        segments.entry(Arc::as_ptr(record.charge.segment()) as usize).or_default().push(record);
    }
    let mut candidates = Vec::new();
    for records in segments.into_values() {
        // A segment with other users, such as leased tensors or an open slab, would not be freed.
        let is_all = records.first().is_none_or(|record| record.charge.segment().users() == records.len());
        if is_all {
            candidates.push(Candidate::of(records, false));
        } else {
            let counted = records.into_iter().filter(|record| record.charge.metadata() > 0);
            candidates.extend(counted.map(|record| Candidate::of(vec![record], true)));
        }
    }
    // Ties do not depend on the order of a hash table.
    let first = |candidate: &Candidate| candidate.records.iter().map(|record| (record.created, record.id)).min();
    candidates.sort_by(|a, b| {
        let by_cost = a.cost().total_cmp(&b.cost());
        by_cost.then(a.last_used.cmp(&b.last_used)).then_with(|| first(a).cmp(&first(b)))
    });
    candidates
}

/// Orders candidates for `want` in `budget`. Tensors of other devices return nothing to a device, so they are left out, and only metadata to
/// the host, so there they go last.
pub(crate) fn order_for(candidates: &mut Vec<Candidate>, budget: &Arc<Budget>, want: Want) {
    if !matches!(want, Want::Metadata) {
        candidates.sort_by_key(|candidate| candidate.is_partial);
    }
    candidates.retain(|candidate| budget.device().is_host() || candidate.is_of(budget));
    candidates.sort_by_key(|candidate| !candidate.is_of(budget));
}

/// The bytes that `records` take from the budget, each segment counted once.
pub(crate) fn charged_bytes<'a>(records: impl Iterator<Item = &'a Arc<Record>>) -> u64 {
    let mut seen = HashSet::new();
    let first = |record: &&Arc<Record>| seen.insert(Arc::as_ptr(record.charge.segment()));
    records.filter(first).map(|record| record.charge.segment().bytes).sum()
}

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{LocalStore, Publication, Retention, TensorSpec, TensorStore};
    use cotensor_core::DType;

    #[test]
    fn tensors_of_a_segment_have_one_order() {
        let store = LocalStore::builder().build();
        let holder = store.holder("m");
        let whole = store.reserve(TensorSpec::new("whole", DType::U8, &[4]), &holder).unwrap().publish().unwrap();
        let segment = store.charge_existing(whole.device(), 4).unwrap();
        let adopt = |name: &str| {
            let retention = Retention::Cached { recompute: Duration::ZERO };
            let spec = TensorSpec { retention, ..TensorSpec::new(name, DType::U8, &[4]) };
            let charge = store.grant_in(&segment, &spec).unwrap();
            let memory = Arc::clone(whole.record.segment());
            let lease =
                store.adopt(spec, whole.layout().clone(), memory, charge, Publication::default(), &holder).unwrap();
            Arc::clone(&lease.record)
        };
        let mut pack: Vec<_> = ["a", "b", "c"].map(adopt).into();
        let order = |records: &[Arc<Record>]| {
            let found = candidates(records.to_vec());
            assert_eq!(found.len(), 1);
            found[0].records.iter().map(|record| record.id).collect::<Vec<_>>()
        };
        let first = order(&pack);
        pack.reverse();
        assert_eq!(order(&pack), first);
        pack.swap(0, 1);
        assert_eq!(order(&pack), first);
    }
}
