//! Eviction. `candidates.rs` decides the order of tensors, `make_room.rs` evicts or spills them.

mod candidates;
mod make_room;

pub(crate) use candidates::{Candidate, candidates, charged_bytes};
pub(crate) use make_room::{ROUNDS_MAX, Want, pause};
