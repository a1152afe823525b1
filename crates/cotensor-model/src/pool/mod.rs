//! The resource pool: models by type and name, a bounded number of concurrent calls, devices by preference.

mod devices;
mod permits;
mod resource_pool;

pub use devices::{DeviceChoice, HardwarePreferences};
pub use resource_pool::{PooledModel, PooledResult, ResourcePool};
