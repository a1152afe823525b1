//! The demo: measures several users of one input in several variants, each in new processes.
//!
//! *without*: every user opens its own copy, as the engine loads by default. *mapped*: the same with the engine's memory-mapped
//! weights. *by hand*: one program opens one copy and reuses its results, on this engine and on onnxruntime if installed.
//! *with*: through Cotensor.

mod assets;
mod by_hand;
mod compare;
mod measure;
mod report;
mod resident;
mod savings;
mod scenario;
mod seeded;
mod variants;
mod worker;

pub use by_hand::Onnxruntime;
pub use compare::{Comparison, Cost, DemoOptions, Scenario as ScenarioResult, run_demo};
pub use measure::Progress;
pub use report::{html, text};
pub use savings::{Avoidable, MemoryParts, TimeParts, max_abs_diff};
pub use scenario::{SCENARIOS, Scenario, materialize};
pub use worker::{Mode, WeightBytes, WorkerOptions, WorkerReport, run_worker};
