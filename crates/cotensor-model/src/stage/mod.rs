//! Stages: graphs with named inputs and outputs. A stage runs only when the store does not have its result.

mod compute;
mod graph_stage;
mod outputs;

pub(crate) use compute::compute_once;
pub(crate) use graph_stage::{Claimed, Sharing};
pub use graph_stage::{RunsOn, Stage, StageRun};
pub(crate) use outputs::{Computation, Made};
