//! The error of a reservation that does not fit. It names the holders of the most bytes.

use crate::EmbeddedStore;
use crate::Holder;
use crate::budget::Budget;
use crate::eviction::charged_bytes;
use crate::sync::{Mutex, lock};
use cotensor_core::{Error, ErrorKind, size};
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
struct Uses {
    budget: Arc<Budget>,
    /// The holders of the most bytes, and how many each holds.
    holders: Vec<(u64, String)>,
    /// The bytes of listed tensors, each segment counted once.
    listed_bytes: u64,
    /// The number of listed tensors, on any device.
    tensors: usize,
    /// Until when the list is good, by the store's clock.
    until: Duration,
}

impl EmbeddedStore {
    /// As [`over_budget`](Self::over_budget), with the error of spilling.
    pub(crate) fn not_spilled(&self, budget: &Arc<Budget>, bytes: u64, error: &Error) -> Error {
        let over = self.over_budget(budget, bytes);
        Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", over.message()))
    }

    /// The error of a reservation that does not fit. It names the holders of the most bytes.
    pub(crate) fn over_budget(&self, budget: &Arc<Budget>, bytes: u64) -> Error {
        let (used, max, metadata) = (budget.total(), budget.max(), budget.metadata());
        let uses = self.uses(budget);
        let unlisted = budget.used().saturating_sub(uses.listed_bytes);
        let holds = |(bytes, name): &(u64, String)| format!("{name} holds {}", size(*bytes));
        let mut held: Vec<String> = uses.holders.iter().map(holds).collect();
        if unlisted > 0 {
            held.push(format!("unpublished and private tensors and empty slabs take {}", size(unlisted)));
        }
        if metadata > 0 {
            held.push(format!("metadata of {} tensors takes {}", uses.tensors, size(metadata)));
        }
        held.extend(self.observer.as_ref().and_then(|observer| observer.retained_memory()));
        let held = if held.is_empty() { "no tensor is leased".to_owned() } else { held.join(", ") };
        Error::new(
            ErrorKind::OverBudget,
            format!(
                "{} do not fit the {}budget of {}, of which {} are in use: {held}. Release leases or raise the budget",
                size(bytes),
                if budget.device().is_host() { String::new() } else { format!("{} ", budget.device()) },
                size(max),
                size(used)
            ),
        )
    }

    fn uses(&self, budget: &Arc<Budget>) -> Uses {
        let began = self.clock.now();
        let good = |uses: &&Uses| Arc::ptr_eq(&uses.budget, budget) && began < uses.until;
        if let Some(uses) = lock(&self.last_uses.0).as_ref().filter(good) {
            return uses.clone();
        }
        let survey = self.names.survey();
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
        let now = self.clock.now();
        let uses = Uses {
            budget: Arc::clone(budget),
            holders,
            listed_bytes: charged_bytes(on_device.iter().copied()),
            tensors: survey.records.len(),
            until: now + now.saturating_sub(began) * KEPT_FACTOR,
        };
        *lock(&self.last_uses.0) = Some(uses.clone()).filter(|uses| uses.tensors >= KEPT_TENSORS_MIN);
        uses
    }
}
