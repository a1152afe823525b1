//! Shared tensors by name: models acquire and release them, and a manager keeps them in a [`Store`](cotensor_store::Store).

mod access;
mod diagnostics;
mod inner;
mod manager;
mod reports;
mod shared;
mod state;
mod view;

pub use cotensor_store::log::LogSink;
pub use manager::TensorSharingManager;
pub use shared::SharedTensor;
pub use view::{Exposed, SharedTensorView};
