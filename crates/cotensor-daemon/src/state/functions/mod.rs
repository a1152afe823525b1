//! The functions that clients provide, and their tasks.

mod by_name;
mod provider;
mod registry;
mod slots;
mod tasks;

pub(crate) use by_name::FunctionCall;
pub(crate) use provider::FunctionProvider;
pub(crate) use registry::Registry;
pub(crate) use slots::Slots;
