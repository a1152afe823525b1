//! Functions across processes, provided and called: one file for each class.

mod call;
mod caller;
mod codec;
mod managed_object;
mod pending;
mod provider;
mod remote_object;
mod shutdown;
mod task;

pub(crate) use call::Call;
pub(crate) use caller::Functions;
pub(crate) use pending::Pending;
pub(crate) use provider::Provider;
pub(crate) use remote_object::RemoteObject;
pub(crate) use shutdown::{reset_functions, stop_functions};
pub(crate) use task::Task;
