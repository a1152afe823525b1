//! The functions that clients provide.

mod by_name;
mod provider;
mod registry;
mod slots;

pub(crate) use by_name::FunctionCall;
pub(crate) use provider::FunctionProvider;
pub(crate) use registry::Registry;
pub(crate) use slots::Slots;
