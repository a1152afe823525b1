//! Memory of devices, whose bytes the host cannot address.

mod cuda;

pub use cuda::{CudaBytes, CudaDevice, CudaDriver, CudaMemory, DEVICES_VARIABLE, DRIVER_VARIABLE};
