//! The demo: several users of one input, measured in several ways, each in fresh processes.
//!
//! *without*: every user opens its own copy, the way the engine loads by default. *mapped*: the same with the engine's own
//! memory-mapped weights. *by hand*: one program opens one copy and uses its results again, on this engine and on
//! onnxruntime where it is installed. *with*: through Cotensor.

mod assets;
mod by_hand;
mod compare;
mod measure;
mod report;
mod resident;
mod savings;
mod scenario;
mod seeded;
mod ways;
mod worker;

pub use by_hand::Onnxruntime;
pub use compare::{Comparison, Cost, DemoOptions, Scenario as ScenarioResult, run_demo};
pub use measure::Progress;
pub use report::{html, text};
pub use savings::{Avoidable, MemoryParts, TimeParts, max_abs_diff};
pub use scenario::{SCENARIOS, Scenario, materialize};
pub use worker::{Mode, WeightBytes, WorkerOptions, WorkerReport, run_worker};
