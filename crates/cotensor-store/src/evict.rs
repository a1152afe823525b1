//! What goes first when memory is wanted.

use crate::count::LeaseCount;
use crate::record::Record;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The tensors of one segment: they go together or not at all.
pub(crate) struct Group {
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) bytes: u64,
    pub(crate) recompute: Duration,
    last_used: Duration,
}

impl Group {
    /// Closes every tensor of the group, or none.
    pub(crate) fn close(&self) -> bool {
        let closed = LeaseCount::close_all(&self.records.iter().map(|record| &record.leases).collect::<Vec<_>>());
        if closed {
            self.records.iter().for_each(|record| record.charge.closed());
        }
        closed
    }
}

/// Groups that nobody leases, the first to go first: least time to make again per byte, then longest unused,
/// then oldest.
pub(crate) fn candidates(records: Vec<Arc<Record>>) -> Vec<Group> {
    let mut groups: HashMap<usize, Group> = HashMap::new();
    for record in records {
        let group = groups.entry(Arc::as_ptr(&record.charge) as usize).or_insert_with(|| Group {
            records: Vec::new(),
            bytes: record.charge.bytes,
            recompute: Duration::ZERO,
            last_used: Duration::ZERO,
        });
        group.recompute += record.recompute();
        group.last_used = group.last_used.max(record.last_used());
        group.records.push(record);
    }
    // Ties must not depend on the order of a hash table.
    let first = |group: &Group| group.records.iter().map(|record| (record.created, record.id)).min();
    // Memory that somebody else uses too, such as a slab that is written still, would not come back.
    let all = |group: &Group| group.records.first().is_none_or(|record| record.charge.open() == group.records.len());
    let unleased = |group: &Group| group.records.iter().all(|record| record.leases.total() == 0);
    let mut groups: Vec<Group> = groups.into_values().filter(|group| all(group) && unleased(group)).collect();
    let cost = |group: &Group| group.recompute.as_secs_f64() / group.bytes.max(1) as f64;
    groups
        .sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.last_used.cmp(&b.last_used)).then(first(a).cmp(&first(b))));
    groups
}

/// The bytes that `records` take from the budget, each segment counted once.
pub(crate) fn charged_bytes(records: &[Arc<Record>]) -> u64 {
    let mut seen = HashSet::new();
    let first = |record: &&Arc<Record>| seen.insert(Arc::as_ptr(&record.charge));
    records.iter().filter(first).map(|record| record.charge.bytes).sum()
}
