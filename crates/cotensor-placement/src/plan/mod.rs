//! The planner: which tensors stay on the device between two uses, when the others are copied, and which operations run
//! on the host.
//!
//! A plan is decided by its *holds*. A tensor that is used by operation a and next by operation b is either held on the
//! device in between, or dropped after a and copied again before b. Copies happen in the order of need, each as early as
//! memory allows. [`Schedule`] derives the copies from the holds and finds the time of a period; [`construct`] and
//! [`rotate`] propose holds, [`improve`] changes them, and [`Planner`] takes the fastest.

mod construct;
mod holds;
mod host;
mod improve;
mod plan;
mod planner;
mod problem;
mod rotate;
mod schedule;

pub use plan::{Eviction, Plan, Prefetch};
pub use planner::{Effort, Planner};

#[cfg(test)]
mod tests;
