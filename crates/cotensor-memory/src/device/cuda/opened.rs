//! A device in use.

use super::context::Context;
use super::devices::CudaDevice;
use super::driver::CudaDriver;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};

/// A device, and its context once it is needed.
pub(super) struct Opened {
    pub(super) driver: Arc<CudaDriver>,
    pub(super) device: CudaDevice,
    /// The number in this process, as the driver takes it.
    pub(super) ordinal: i32,
    context: Mutex<Option<Arc<Context>>>,
}

impl Opened {
    pub(super) fn new(driver: &Arc<CudaDriver>, device: CudaDevice) -> Self {
        let ordinal = i32::try_from(device.ordinal).unwrap_or(i32::MAX);
        Self { driver: Arc::clone(driver), device, ordinal, context: Mutex::default() }
    }

    /// The context, which the first call opens.
    pub(super) fn context(&self) -> Result<Arc<Context>> {
        self.driver.check_process()?;
        let mut context = lock(&self.context);
        if let Some(context) = &*context {
            return Ok(Arc::clone(context));
        }
        let opened = Arc::new(Context::open(&self.driver, self.device.handle)?);
        *context = Some(Arc::clone(&opened));
        Ok(opened)
    }
}
