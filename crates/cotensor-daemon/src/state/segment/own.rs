//! Memory that holds one tensor, or the blobs of one upload, on any device.

use super::device::DeviceSegment;
use super::sealed::Sealed;
use cotensor_core::{Device, Result, Segment};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory that a client made, checked. The device is one that the daemon has a budget for.
///
/// # Errors
/// `Refused` for a descriptor that is not `len` bytes of such memory; in host memory, for missing seals and for holes.
pub(crate) fn own_segment(fd: OwnedFd, len: usize, device: Device) -> Result<Arc<dyn Segment>> {
    if device.is_host() { Ok(Arc::new(Sealed::new(fd, len)?)) } else { known_segment(Arc::new(fd.into()), len, device) }
}

/// As [`own_segment`], for memory that a former server has checked to have no holes.
///
/// # Errors
/// As there.
pub(crate) fn known_segment(file: Arc<File>, len: usize, device: Device) -> Result<Arc<dyn Segment>> {
    if device.is_host() {
        Ok(Arc::new(Sealed::known(file, len)?))
    } else {
        Ok(Arc::new(DeviceSegment::new(file, len, device)?))
    }
}
