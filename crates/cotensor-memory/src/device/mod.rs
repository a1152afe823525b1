//! Memory of devices, whose bytes the host cannot address.

mod cuda;
mod simulated;

pub use cuda::{CudaBytes, CudaDevice, CudaDriver, CudaMemory, DEVICES_VARIABLE, DRIVER_VARIABLE};
pub use simulated::SimulatedMemory;
