//! Pipelines: several users, each a model and a task, on the same input.

mod answer;
mod default_task;
mod definition;
mod explain;
pub mod generate;
mod generation_config;
mod inputs;
mod outputs;
mod report;
mod rerank;
mod run;
mod task;

pub use answer::{Answer, Output};
pub use default_task::default_task;
pub use definition::{Pipeline, User};
pub use explain::{Explanation, StageUse, explain};
pub use inputs::Inputs;
pub use report::{StageReport, UserReport};
pub use task::{run_user, run_user_keeping};
