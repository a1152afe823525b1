//! Functions across processes, provided and called: one file for each class.

mod call;
mod caller;
mod codec;
mod completion_queue;
mod managed_object;
mod provider;
mod remote_object;
mod shutdown;
mod task;

pub(crate) use call::Call;
pub(crate) use caller::Functions;
pub(crate) use completion_queue::CompletionQueue;
pub(crate) use provider::Provider;
pub(crate) use remote_object::RemoteObject;
pub(crate) use shutdown::{reset_functions, stop_functions};
pub(crate) use task::Task;
