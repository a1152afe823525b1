//! The memory budget.

mod charge;
mod devices;
mod segment_charge;

pub(crate) use charge::SpilledCharge;
pub use charge::{Budget, Charge, DIMENSION_BYTES, TEXT_COPIES, TensorCharge};
pub(crate) use devices::Devices;
pub use segment_charge::SegmentCharge;
