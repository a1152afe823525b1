//! The strategy that plans.

mod alternative;
mod faster;
mod flow;
mod follow;
mod phase;
mod phases;
mod recorder;
mod recurring;
mod varying;

pub use flow::{Flow, FlowState};
