//! The error of a reservation that does not fit. It names the holders of the most bytes.

use super::uses::Uses;
use crate::budget::Budget;
use cotensor_core::{Error, ErrorKind, size};

/// The error of a reservation of `bytes` bytes that does not fit `budget`, which has these `uses`. `retained` names other reasons for
/// which memory is in use.
pub(crate) fn over_budget(budget: &Budget, bytes: u64, uses: &Uses, retained: Option<String>) -> Error {
    let (used, max, metadata) = (budget.total(), budget.max(), budget.metadata());
    let unlisted = budget.used().saturating_sub(uses.listed_bytes);
    let holds = |(bytes, name): &(u64, String)| format!("{name} holds {}", size(*bytes));
    let mut held: Vec<String> = uses.holders.iter().map(holds).collect();
    if unlisted > 0 {
        held.push(format!("unpublished and private tensors and empty slabs take {}", size(unlisted)));
    }
    if metadata > 0 {
        held.push(format!("metadata of {} tensors takes {}", uses.tensors, size(metadata)));
    }
    held.extend(retained);
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
