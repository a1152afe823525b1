//! Addresses of an allocation.

use super::driver::CudaDriver;
use super::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use super::functions::{Access, AccessDescription};
use super::handle::{Handle, refused};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};

/// An allocation that is mapped for its device. It keeps the memory.
pub(super) struct Mapping {
    addresses: Addresses,
    /// Other devices that can read it.
    readers: Mutex<Vec<i32>>,
}

/// Reserved addresses.
struct Addresses {
    driver: Arc<CudaDriver>,
    first: u64,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes`, which is all of an allocation of this process.
    pub(super) fn of_created(
        driver: &Arc<CudaDriver>,
        ordinal: i32,
        handle: &Handle,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let (addresses, code) = Addresses::mapped(driver, handle, bytes)?;
        driver.check(format_args!("mapping {bytes} bytes"), code)?;
        Self::accessible(addresses, ordinal, access)
    }

    /// Maps `bytes`, which should be all of an imported allocation, for reading.
    ///
    /// # Errors
    /// `Refused` when the allocation has another length.
    pub(super) fn of_imported(driver: &Arc<CudaDriver>, ordinal: i32, handle: &Handle, bytes: usize) -> Result<Self> {
        let (addresses, code) = Addresses::mapped(driver, handle, bytes)?;
        driver.check(format_args!("mapping {bytes} bytes"), code).map_err(|error| match code {
            // So for a wrong length; the driver maps whole allocations only.
            NOT_SUPPORTED => refused(error.message()),
            _ => error,
        })?;
        Self::accessible(addresses, ordinal, Access::Read)
    }

    /// `addresses` are mapped.
    fn accessible(addresses: Addresses, ordinal: i32, access: Access) -> Result<Self> {
        let mapping = Self { addresses, readers: Mutex::default() };
        mapping.set_access(ordinal, access)?;
        Ok(mapping)
    }

    /// Sets what the device may do with the memory at these addresses.
    pub(super) fn set_access(&self, ordinal: i32, access: Access) -> Result<()> {
        let code = self.access_code(ordinal, access);
        self.addresses.driver.check("changing the access to memory", code)
    }

    /// The driver's result for another access of a device.
    fn access_code(&self, ordinal: i32, access: Access) -> u32 {
        let Addresses { driver, first, bytes } = &self.addresses;
        let description = AccessDescription::of(ordinal, access);
        // SAFETY: `description` outlives the call, which reads one of them; the addresses are mapped.
        driver.relaxed(|| unsafe { (driver.functions.set_access)(*first, *bytes, &raw const description, 1) })
    }

    /// Lets another device read the memory at these addresses. False where the driver does not allow that: the documentation has three
    /// results for it.
    pub(super) fn let_read(&self, ordinal: i32) -> Result<bool> {
        let mut readers = lock(&self.readers);
        if readers.contains(&ordinal) {
            return Ok(true);
        }
        let code = self.access_code(ordinal, Access::Read);
        if matches!(code, INVALID_VALUE | INVALID_DEVICE | NOT_SUPPORTED) {
            return Ok(false);
        }
        self.addresses.driver.check("letting another device read memory", code)?;
        readers.push(ordinal);
        Ok(true)
    }

    /// The address of the first byte, for the device.
    pub(super) fn address(&self) -> u64 {
        self.addresses.first
    }

    /// How many bytes it shows.
    pub(super) fn bytes(&self) -> usize {
        self.addresses.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Addresses { driver, first, bytes } = &self.addresses;
        if driver.is_forked() {
            return;
        }
        // SAFETY: work that uses these addresses has ended: functions that copy wait for it, and so does a `Lendable` that other code
        // has the address of.
        let _ = driver.relaxed(|| unsafe { (driver.functions.unmap)(*first, *bytes) });
    }
}

impl Addresses {
    fn reserve(driver: &Arc<CudaDriver>, bytes: usize) -> Result<Self> {
        let mut first = 0;
        // SAFETY: `first` outlives the call (see the module `cuda`).
        let code = driver.relaxed(|| unsafe { (driver.functions.reserve)(&raw mut first, bytes, 0, 0, 0) });
        driver.check(format_args!("reserving {bytes} addresses"), code)?;
        Ok(Self { driver: Arc::clone(driver), first, bytes })
    }

    /// Reserves addresses, and maps all of an allocation there. Also returns the driver's result of the second step.
    fn mapped(driver: &Arc<CudaDriver>, handle: &Handle, bytes: usize) -> Result<(Self, u32)> {
        let addresses = Self::reserve(driver, bytes)?;
        // SAFETY: the addresses are reserved, and nothing is mapped there (see the module `cuda`).
        let code = driver.relaxed(|| unsafe { (driver.functions.map)(addresses.first, bytes, 0, handle.number, 0) });
        Ok((addresses, code))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if self.driver.is_forked() {
            return;
        }
        // SAFETY: nothing is mapped at these addresses any more: a mapping unmaps first.
        let _ = self.driver.relaxed(|| unsafe { (self.driver.functions.free)(self.first, self.bytes) });
    }
}
