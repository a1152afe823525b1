//! The sharing API by name: tensors that models acquire and release, and the manager that keeps them.

mod access;
mod diagnostics;
mod inner;
pub(crate) mod log;
mod manager;
mod reports;
mod shared;
mod state;
mod view;

pub use log::LogSink;
pub use manager::TensorSharingManager;
pub use shared::SharedTensor;
pub use view::{Exposed, SharedTensorView};
