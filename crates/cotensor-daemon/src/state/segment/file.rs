//! The file behind a segment.

use super::device::DeviceSegment;
use super::part::Part;
use super::sealed::Sealed;
use cotensor_core::Segment;
use std::fs::File;
use std::sync::Arc;

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
