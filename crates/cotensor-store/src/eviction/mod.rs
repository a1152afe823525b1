//! Eviction. `candidates.rs` decides the order of tensors, `make_room.rs` evicts or spills them, `refusal.rs`
//! names the holders of the others. `due.rs` frees tensors whose time without leases has passed.

mod ages;
mod candidates;
mod due;
mod make_room;
mod refusal;
mod uses;

pub(crate) use ages::Ages;
pub(crate) use candidates::{Candidate, candidates};
pub(crate) use make_room::{ROUNDS_MAX, Want, pause};
pub(crate) use uses::LastUses;
