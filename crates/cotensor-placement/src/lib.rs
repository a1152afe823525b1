//! Decides which tensors sit on a device when, for programs whose tensors do not fit there, and simulates the decisions.
//!
//! Pure Rust without files, threads and clocks: all times are virtual, in nanoseconds, and equal inputs give equal
//! results. Builds for `wasm32-unknown-unknown`.

mod bound;
mod cache;
mod compare;
mod decision;
mod device;
mod divide;
mod driver;
mod memory;
mod plan;
mod random;
mod simulator;
mod strategy;
mod time;
mod trace;

pub use bound::bound_ns;
pub use cache::Blend;
pub use compare::{Comparison, Measured, compare, measure};
pub use decision::{Expected, Move, Place, Strategy, View};
pub use device::Device;
pub use divide::{divide, part};
pub use driver::Driver;
pub use plan::{Effort, Eviction, Plan, Planner, Prefetch};
pub use simulator::{Faults, Machine, Outcome, Sample, Simulator, Theft};
pub use strategy::{AllCpu, Flow, FlowState, Genoa, Lru, Pinned};
pub use time::{Nanos, micros};
pub use trace::{Operation, Routing, Tensor, TensorIndex, Trace, cyclic};
