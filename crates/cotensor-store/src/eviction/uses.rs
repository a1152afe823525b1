//! The holders of the most bytes of a budget, for errors.

use super::candidates::charged_bytes;
use crate::budget::Budget;
use crate::names::Names;
use crate::sync::{Mutex, lock};
use crate::{Clock, Holder};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The most holders that an error names.
const HOLDERS_SHOWN_MAX: usize = 5;
/// From so many tensors on, a list of holders is kept for a time. Of fewer tensors it is always new.
const KEPT_TENSORS_MIN: usize = 1000;
/// A list is kept for so many times the time that it took, so that refusals take at most a twentieth of the time.
const KEPT_FACTOR: u32 = 20;

/// The last list of holders.
#[derive(Debug, Default)]
pub(crate) struct LastUses(Mutex<Option<Uses>>);

/// The uses of a budget.
#[derive(Clone, Debug)]
pub(crate) struct Uses {
    budget: Arc<Budget>,
    /// The holders of the most bytes, and how many each holds.
    pub(super) holders: Vec<(u64, String)>,
    /// The bytes of listed tensors, each segment counted once.
    pub(super) listed_bytes: u64,
    /// The number of listed tensors, on any device.
    pub(super) tensors: usize,
    /// Until when the list is good, by the store's clock.
    until: Duration,
}

impl LastUses {
    /// The uses of a budget. The list may be some time old if it took long.
    pub(crate) fn of(&self, budget: &Arc<Budget>, names: &Names, clock: &dyn Clock) -> Uses {
        let began = clock.now();
        let good = |uses: &&Uses| Arc::ptr_eq(&uses.budget, budget) && began < uses.until;
        if let Some(uses) = lock(&self.0).as_ref().filter(good) {
            return uses.clone();
        }
        let survey = names.survey();
        let mut by_holder: HashMap<Holder, u64> = HashMap::new();
        let on_device: Vec<_> =
            survey.records.iter().filter(|record| Arc::ptr_eq(record.charge.segment().budget(), budget)).collect();
        for record in &on_device {
            for (holder, _) in record.leases.holders() {
                *by_holder.entry(holder).or_default() += record.layout.size_bytes() as u64;
            }
        }
        let mut holders: Vec<(u64, String)> =
            by_holder.into_iter().map(|(holder, bytes)| (bytes, holder.name().to_owned())).collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        holders.truncate(HOLDERS_SHOWN_MAX);
        let now = clock.now();
        let uses = Uses {
            budget: Arc::clone(budget),
            holders,
            listed_bytes: charged_bytes(on_device.iter().copied()),
            tensors: survey.records.len(),
            until: now + now.saturating_sub(began) * KEPT_FACTOR,
        };
        *lock(&self.0) = Some(uses.clone()).filter(|uses| uses.tensors >= KEPT_TENSORS_MIN);
        uses
    }
}
