//! Segments of descriptors that clients sent, and the files behind segments.

use super::device::DeviceSegment;
use super::part::Part;
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

/// The file of a segment, if the daemon made the segment.
pub(crate) fn file_of(segment: &dyn Segment) -> Option<Arc<File>> {
    let segment = segment.as_any()?;
    let of_slab = || segment.downcast_ref::<Part>().map(|part| &part.slab.file);
    let on_device = || segment.downcast_ref::<DeviceSegment>().map(|segment| &segment.file);
    segment.downcast_ref::<Sealed>().map(|sealed| &sealed.file).or_else(of_slab).or_else(on_device).map(Arc::clone)
}

/// The length of the memory behind the descriptor of a segment, in bytes. Only a part of a slab is shorter.
pub(crate) fn file_bytes(segment: &dyn Segment) -> usize {
    let part = segment.as_any().and_then(|segment| segment.downcast_ref::<Part>());
    part.map_or(segment.len(), |part| part.slab.len)
}
