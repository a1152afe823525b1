//! A tensor's own memory on a device: kept by its descriptor.

use cotensor_core::{Device, Error, ErrorKind, MemoryKind, Result, Segment};
use rustix::fs::{FileType, fstat};
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Memory of a device that a client made. The daemon can neither read it nor seal it; its descriptor keeps it
/// allocated.
pub(crate) struct DeviceSegment {
    /// Shared with the journal.
    pub(super) file: Arc<File>,
    len: usize,
    device: Device,
}

impl DeviceSegment {
    /// A segment of `len` bytes of `device`.
    ///
    /// # Errors
    /// `Refused` for a descriptor that is not memory of such a device.
    pub(super) fn new(file: Arc<File>, len: usize, device: Device) -> Result<Self> {
        check_device_memory(&file, len, device)?;
        Ok(Self { file, len, device })
    }
}

/// # Errors
/// `Refused` for a descriptor that cannot be `len` bytes of memory of such a device.
pub(super) fn check_device_memory(file: &File, len: usize, device: Device) -> Result<()> {
    let found = fstat(file).map_err(|error| Error::io("reading a segment's status", &error.into()))?;
    let is_memory = match (device, FileType::from_raw_mode(found.st_mode)) {
        (Device::Fake(_), FileType::RegularFile) => u64::try_from(found.st_size).ok() == Some(len as u64),
        (Device::Fake(_), _) => false,
        // A driver exports a handle on its own device file, or on a file without a type. A file, whose bytes are
        // host memory or a disk, would evade the budget of the host.
        (_, kind) => matches!(kind, FileType::CharacterDevice | FileType::Unknown),
    };
    if is_memory {
        return Ok(());
    }
    let message = format!("not a published segment: the descriptor is not {len} bytes of memory on {device}");
    Err(Error::new(ErrorKind::Refused, message))
}

impl Segment for DeviceSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        self.device
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
