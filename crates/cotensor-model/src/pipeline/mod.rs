//! Pipelines: several users, each a model and a task, on the same input.

mod answer;
mod explain;
pub mod generate;
mod inputs;
mod outputs;
mod pipeline;
mod report;
mod run;

pub use answer::{Answer, Output};
pub use explain::{Explanation, StageUse, explain};
pub use inputs::Inputs;
pub use pipeline::{Pipeline, User};
pub use report::{StageReport, UserReport};
pub use run::{run_user, run_user_keeping};
