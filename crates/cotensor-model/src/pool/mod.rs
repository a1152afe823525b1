//! The resource pool: models by type and name, a bounded number of concurrent calls, devices by preference.

mod devices;
mod held_tensors;
mod permits;
mod precision;
mod resource_pool;
mod shared_model;
mod ultra_low_precision;

pub use devices::{DeviceChoice, HardwarePreferences};
pub use precision::Quantizing;
pub use resource_pool::{PooledModel, PooledResult, ResourcePool};
pub use ultra_low_precision::{UltraLowPrecision, UltraLowPrecisionOptions};
