//! The functions that clients provide.

mod by_name;
mod registry;
mod slots;

pub(crate) use by_name::FunctionCall;
pub(crate) use registry::{FunctionProvider, Registry};
pub(crate) use slots::Slots;
