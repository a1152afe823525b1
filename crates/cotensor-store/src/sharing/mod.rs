//! The sharing API by name: tensors that models acquire and release, and the manager that keeps them.

mod manager;
mod shared;

pub use manager::TensorSharingManager;
pub use shared::{SharedTensor, SharedTensorView};
