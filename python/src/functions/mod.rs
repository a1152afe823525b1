//! Functions across processes: this process's, and those of others.

mod caller;
mod ending;
mod failure;
mod object;
mod pending;
mod place;
mod provider;
mod task;
mod value;

pub(crate) use caller::Functions;
pub(crate) use ending::{begin_functions, end_functions};
pub(crate) use object::RemoteObject;
pub(crate) use pending::Pending;
pub(crate) use provider::{Call, Provider};
pub(crate) use task::Task;
