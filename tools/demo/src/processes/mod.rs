//! The scenario `processes`: several processes of one model, each with weights of its own, and with those of a daemon.

mod comparison;
mod daemon;
mod fleet;
mod memory;
mod worker;

pub use comparison::{FleetCost, Processes};
pub(crate) use comparison::{Setting, compare};
pub use fleet::Fleet;
pub use memory::FleetMemory;
pub use worker::{ModelProcess, Weights, run_model_process};
