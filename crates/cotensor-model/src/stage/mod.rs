//! Stages: graphs with named inputs and outputs. A stage runs only when the store does not have its result.

mod compute;
mod outputs;
mod stage;

pub(crate) use compute::compute_once;
pub(crate) use outputs::Computation;
pub(crate) use stage::Sharing;
pub use stage::{Stage, StageRun};
