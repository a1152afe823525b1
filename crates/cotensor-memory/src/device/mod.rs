//! Memory of devices, whose bytes the host cannot address.

mod cuda;
mod management;
mod simulated;

pub use cuda::{
    CopyStream, CudaBytes, CudaDevice, CudaDriver, CudaMemory, DEVICES_VARIABLE, DRIVER_VARIABLE, ProducedPlace,
};
pub use management::{GpuUsage, MANAGEMENT_VARIABLE, gpu_usage, gpu_usage_by};
pub use simulated::SimulatedMemory;
