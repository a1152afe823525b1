//! One tensor and its leases.

mod count;
mod lease;
mod record;

pub use count::{LeaseCount, Released};
pub use lease::{Lease, TensorView};
pub use record::{Record, VersionState};
