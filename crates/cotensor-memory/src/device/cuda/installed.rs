//! The memories of the installed driver, which all stores of a process share.

use super::driver::CudaDriver;
use super::memory::CudaMemory;
use cotensor_core::Result;
use std::sync::OnceLock;

impl CudaMemory {
    /// The memories of all devices of the [installed driver](CudaDriver::open), which the first call loads: one for each device, so that the
    /// process has one context and one stream of it, however many stores it has.
    ///
    /// # Errors
    /// As [`CudaDriver::open`] and [`CudaDriver::devices`]; a later call tries again.
    pub fn installed() -> Result<&'static [Self]> {
        static INSTALLED: OnceLock<Vec<CudaMemory>> = OnceLock::new();
        if let Some(found) = INSTALLED.get() {
            return Ok(found);
        }
        let driver = CudaDriver::open()?;
        let found = driver.devices()?.into_iter().map(|device| Self::new(&driver, device)).collect();
        Ok(INSTALLED.get_or_init(|| found))
    }
}
