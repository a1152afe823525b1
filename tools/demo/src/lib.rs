//! The demo: measures several users of one input in several variants, each in new processes.
//!
//! *without*: every user opens its own copy, as the engine loads by default. *mapped*: the same with the engine's
//! memory-mapped weights. *by hand*: one program opens one copy and reuses its results, on this engine and on
//! onnxruntime if installed. *with*: through Cotensor. One scenario measures several processes of one model instead.

mod about;
mod assets;
mod by_hand;
mod chart;
mod compare;
mod comparison;
mod engine;
mod fitting;
mod measure;
mod models;
mod options;
mod processes;
mod report;
mod resident;
mod savings;
mod scenario;
mod seeded;
mod sentences;
mod style;
mod temp_folder;
mod variants;
mod worker;
mod worker_report;

pub use about::About;
pub use by_hand::Onnxruntime;
pub use chart::{Axis, ChartLine, escaped, legend, line_chart};
pub use compare::run_demo;
pub use comparison::{Comparison, Cost, Entry, Scenario as ScenarioResult, SharedStage};
pub use measure::Progress;
pub use options::{DemoOptions, Mode, WorkerOptions};
pub use processes::{Fleet, FleetCost, FleetMemory, ModelProcess, Processes, Weights, run_model_process};
pub use report::{html, text};
pub use savings::{Avoidable, MemoryParts, TimeParts, max_abs_diff};
pub use scenario::{Claim, SCENARIOS, Scenario, materialize};
pub use style::page_start;
pub use worker::run_worker;
pub use worker_report::{Continued, Fit, WeightBytes, WorkerReport};
