//! Eviction: the order of tensors, and the work of making room.

mod candidates;
mod pressure;

pub(crate) use candidates::{Group, candidates, charged_bytes};
pub(crate) use pressure::{ROUNDS_MAX, Want, pause};
