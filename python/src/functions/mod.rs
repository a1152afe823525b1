//! Functions across processes, provided and called: one file for each class.

mod call;
mod caller;
mod codec;
mod completion_queue;
mod provider;
mod shutdown;
mod task;

pub(crate) use call::Call;
pub(crate) use caller::Functions;
pub(crate) use codec::remote_object::RemoteObject;
pub(crate) use completion_queue::CompletionQueue;
pub(crate) use provider::Provider;
pub(crate) use shutdown::{reset_functions, stop_functions};
pub(crate) use task::Task;
