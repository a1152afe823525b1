//! A device on a virtual clock: one queue of operations and one copy queue in each direction.
//!
//! [`Simulator`] runs a program under a strategy and checks at each event that the used memory stays within the budget,
//! that no operation runs before its tensors have landed, and that no changed tensor is lost. The result depends only on
//! the arguments.

mod faults;
mod machine;
mod outcome;
mod queues;
mod simulator;

pub use faults::{Faults, Theft};
pub use machine::Machine;
pub use outcome::{Outcome, Sample};
pub use simulator::Simulator;
