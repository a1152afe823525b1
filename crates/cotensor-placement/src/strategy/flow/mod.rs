//! The strategy that plans.

mod flow;
mod follow;
mod phase;
mod recorder;

pub use flow::{Flow, FlowState};
pub use follow::Expected;
