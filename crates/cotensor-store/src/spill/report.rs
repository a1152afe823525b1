//! Lists and figures of spilled tensors.

use super::{SpilledSet, SpilledTensorInfo};
use crate::{EmbeddedStore, TensorId};
use std::collections::HashMap;
use std::sync::Arc;

impl EmbeddedStore {
    /// The number of spilled tensors, and the bytes of their segments.
    pub(crate) fn spilled_now(&self) -> (usize, u64) {
        let Some(_) = &self.spill else { return (0, 0) };
        let spilled = self.names.spilled("");
        let by_segment: HashMap<_, u64> = spilled.iter().map(|(set, _)| (Arc::as_ptr(set), set.bytes)).collect();
        (spilled.len(), by_segment.into_values().sum())
    }

    /// Every spilled tensor whose name starts with `prefix`, by name.
    pub fn spilled(&self, prefix: &str) -> Vec<SpilledTensorInfo> {
        let now = self.clock.now();
        let describe = |(set, id): (Arc<SpilledSet>, TensorId)| {
            let tensor = set.tensor(id)?.clone();
            let age = now.saturating_sub(self.created(tensor.created));
            Some(SpilledTensorInfo { tensor, age, lost: set.lost() })
        };
        let mut found: Vec<SpilledTensorInfo> = self.names.spilled(prefix).into_iter().filter_map(describe).collect();
        found.sort_by(|a, b| a.tensor.spec.name.cmp(&b.tensor.spec.name));
        found
    }
}
