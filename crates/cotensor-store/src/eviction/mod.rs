//! Eviction: the order of tensors (`candidates.rs`), the purposes of freed memory (`want.rs`), the times after which unleased tensors are
//! freed (`ages.rs`), and the error that names the holders of the others (`over_budget.rs`, `uses.rs`).

mod ages;
mod candidates;
mod over_budget;
mod uses;
mod want;

pub(crate) use ages::Ages;
pub(crate) use candidates::{Candidate, candidates, order_for};
pub(crate) use over_budget::over_budget;
pub(crate) use uses::LastUses;
pub(crate) use want::{ROUNDS_MAX, Want, pause};
