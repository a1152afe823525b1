//! Allocations of a device, and their descriptors.

use super::driver::CudaDriver;
use super::error::{INVALID_VALUE, UNKNOWN};
use super::functions::{AllocationProperties, DESCRIPTOR};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// A handle of an allocation in this process.
pub(super) struct Handle {
    driver: Arc<CudaDriver>,
    pub(super) number: u64,
}

impl Handle {
    /// Allocates memory of a device. Its bytes have any values.
    pub(super) fn create(driver: &Arc<CudaDriver>, ordinal: i32, bytes: usize) -> Result<Self> {
        let (mut number, properties) = (0, AllocationProperties::of(ordinal));
        // SAFETY: both pointers are of values that outlive the call (see the module `cuda`).
        let create = || unsafe { (driver.functions.create)(&raw mut number, bytes, &raw const properties, 0) };
        let code = driver.relaxed(create);
        driver.check(format_args!("allocating {bytes} bytes"), code)?;
        Ok(Self { driver: Arc::clone(driver), number })
    }

    /// Opens the allocation of a descriptor, which stays open.
    ///
    /// # Errors
    /// `Refused` for a descriptor that is no handle, and for memory that is not on the device.
    pub(super) fn import(driver: &Arc<CudaDriver>, ordinal: i32, fd: BorrowedFd<'_>) -> Result<Self> {
        let mut number = 0;
        let fd = fd.as_raw_fd() as usize;
        // SAFETY: `number` outlives the call. For descriptors, the driver takes the number itself in place of a pointer.
        let code = driver.relaxed(|| unsafe { (driver.functions.import)(&raw mut number, fd, DESCRIPTOR) });
        driver.check("importing a descriptor", code).map_err(|error| match code {
            INVALID_VALUE | UNKNOWN => refused(error.message()),
            _ => error,
        })?;
        let (handle, mut found) = (Self { driver: Arc::clone(driver), number }, AllocationProperties::of(ordinal));
        // SAFETY: `found` outlives the call, which writes it (see the module `cuda`).
        let code = unsafe { (driver.functions.properties)(&raw mut found, number) };
        driver.check("reading where imported memory is", code)?;
        if !found.is_on(ordinal) {
            return Err(refused("its memory is on another device or on the host"));
        }
        Ok(handle)
    }

    /// A descriptor that keeps the allocation, in any process.
    pub(super) fn export(&self) -> Result<OwnedFd> {
        let mut fd = -1;
        // SAFETY: `fd` outlives the call (see the module `cuda`).
        let export = || unsafe { (self.driver.functions.export)(&raw mut fd, self.number, DESCRIPTOR, 0) };
        let code = self.driver.relaxed(export);
        self.driver.check("exporting a descriptor", code)?;
        // SAFETY: the driver has just made this descriptor for its caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| Error::io("closing a descriptor on exec", &error.into()))?;
        Ok(fd)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.driver.is_forked() {
            return;
        }
        // SAFETY: the handle is used by nothing else.
        let _ = self.driver.relaxed(|| unsafe { (self.driver.functions.release)(self.number) });
    }
}

/// The error for a descriptor that is not the memory which it was declared to be.
pub(super) fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("the descriptor is not this memory of a CUDA device: {reason}"))
}
