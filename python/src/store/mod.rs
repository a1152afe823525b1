//! The store, and the tensors that come from it: one file for each class.

pub(crate) mod backend;
pub(crate) mod builder;
pub(crate) mod change_queue;
mod claim;
mod connection;
mod copy_out;
pub(crate) mod daemon;
mod device_builder;
mod device_copy;
mod device_tensor;
mod group;
pub(crate) mod holder;
mod index;
mod item;
pub(crate) mod key;
pub(crate) mod lookup;
pub(crate) mod manifest;
mod mapping;
mod options;
mod pickle;
mod producing;
pub(crate) mod report;
pub(crate) mod resident;
pub(crate) mod save;
#[allow(clippy::module_inception, reason = "one file for each class")]
pub(crate) mod store;
pub(crate) mod tensor;
mod tensor_buffer;
mod tensor_values;
pub(crate) mod ticket;
pub(crate) mod watch;
mod watch_state;
