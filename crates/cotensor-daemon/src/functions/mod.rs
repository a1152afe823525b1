//! The functions that clients provide, and their tasks.

mod provider;
mod registry;
mod tasks;

pub(crate) use provider::FunctionProvider;
pub(crate) use registry::Registry;
