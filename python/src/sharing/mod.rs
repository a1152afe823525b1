//! The API of tensors that models acquire and release by name, and the resource pool: one file for each class.

mod expose;
mod log;
mod manager;
mod pooled_model;
mod resource_pool;
mod shared_tensor;
mod view;

pub(crate) use manager::TensorSharingManager;
pub(crate) use pooled_model::PooledModel;
pub(crate) use resource_pool::{ResourcePool, runtime_over};
pub(crate) use shared_tensor::SharedTensor;
pub(crate) use view::SharedTensorView;
