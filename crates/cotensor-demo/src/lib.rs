//! The demo: several users of one input, measured three ways in fresh processes.
//!
//! *without*: every user opens its own copy, the way the engine loads by default. *mapped*: the same with the
//! engine's own memory-mapped weights, the best that people do by hand. *with*: through Cotensor.

mod assets;
mod compare;
mod measure;
mod report;
mod resident;
mod savings;
mod scenario;
mod seeded;
mod ways;
mod worker;

pub use compare::{Comparison, Cost, DemoOptions, Scenario as ScenarioResult, run_demo};
pub use measure::Progress;
pub use report::{html, text};
pub use savings::{Avoidable, MemoryParts, TimeParts, max_abs_diff};
pub use scenario::{SCENARIOS, Scenario, materialize};
pub use worker::{Mode, WeightBytes, WorkerOptions, WorkerReport, run_worker};
