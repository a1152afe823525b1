//! The file behind a segment.

use super::part::Part;
use super::sealed::Sealed;
use cotensor_core::Segment;
use std::fs::File;
use std::sync::Arc;

/// The file of a segment, if the daemon made the segment.
pub(crate) fn file_of(segment: &dyn Segment) -> Option<Arc<File>> {
    let segment = segment.as_any()?;
    let of_slab = || segment.downcast_ref::<Part>().map(|part| &part.slab.file);
    segment.downcast_ref::<Sealed>().map(|sealed| &sealed.file).or_else(of_slab).map(Arc::clone)
}
