//! The resource pool: models by type and name, a bounded number of concurrent calls, devices by preference.

mod devices;
mod held_tensors;
mod permits;
mod resource_pool;
mod shared_model;

pub use devices::{DeviceChoice, HardwarePreferences};
pub use resource_pool::{PooledModel, PooledResult, ResourcePool};
