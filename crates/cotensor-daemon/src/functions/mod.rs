//! The functions that clients provide, and their tasks.

mod by_name;
mod provider;
mod registry;
mod tasks;

pub(crate) use by_name::{FunctionCall, Slots};
pub(crate) use provider::FunctionProvider;
pub(crate) use registry::Registry;
