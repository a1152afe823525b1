//! The error of a reservation that does not fit. It names the holders of the most bytes.

use crate::EmbeddedStore;
use crate::budget::Budget;
use cotensor_core::{Error, ErrorKind, size};
use std::sync::Arc;

impl EmbeddedStore {
    /// As [`over_budget`](Self::over_budget), with the error of spilling.
    pub(crate) fn not_spilled(&self, budget: &Arc<Budget>, bytes: u64, error: &Error) -> Error {
        let over = self.over_budget(budget, bytes);
        Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", over.message()))
    }

    /// The error of a reservation that does not fit. It names the holders of the most bytes.
    pub(crate) fn over_budget(&self, budget: &Arc<Budget>, bytes: u64) -> Error {
        let (used, max, metadata) = (budget.total(), budget.max(), budget.metadata());
        let uses = self.last_uses.of(budget, &self.names, &*self.clock);
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
}
