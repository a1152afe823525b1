//! The memory budget.

mod charge;

pub(crate) use charge::SpilledCharge;
pub use charge::{Budget, Charge, DIMENSION_BYTES, TEXT_COPIES, TensorCharge};
