//! Calls functions of other processes.

mod abandoned;
mod completion_queue;
mod functions;
mod provider_connection;
mod task;

pub use completion_queue::{Completion, CompletionQueue};
pub use functions::Functions;
pub use task::Task;
