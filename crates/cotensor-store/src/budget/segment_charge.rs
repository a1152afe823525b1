//! The charge of a segment to which tensors are still added.

use super::{Charge, TensorCharge};
use std::sync::Arc;

/// The charge of an open segment, to which tensors are still added. While it exists, the segment stays.
#[derive(Debug)]
pub struct SegmentCharge(Arc<Charge>);

impl SegmentCharge {
    /// The charge that the tensors of the segment share.
    pub fn charge(&self) -> Arc<Charge> {
        Arc::clone(&self.0)
    }

    /// The charge of memory that was reserved for one tensor, and in which several lie instead.
    #[must_use]
    pub fn of_reserved(charge: TensorCharge) -> Self {
        Self::new(Arc::clone(charge.segment()))
    }

    pub(crate) fn new(charge: Arc<Charge>) -> Self {
        charge.open();
        Self(charge)
    }

    /// A further charge of an open segment. `None` when the last of its tensors is being freed.
    #[must_use]
    pub fn share(charge: Arc<Charge>) -> Option<Self> {
        charge.share().then(|| Self(charge))
    }
}

impl Drop for SegmentCharge {
    fn drop(&mut self) {
        self.0.close();
    }
}
