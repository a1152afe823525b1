//! One published tensor and its leases. Dropping a [`Lease`] releases it.

mod count;
mod lease;
mod record;
mod view;

pub(crate) use count::{LeaseCount, Released};
pub use lease::Lease;
pub use record::{LeaseBackend, Record, RecordParts, VersionState};
pub use view::TensorView;
