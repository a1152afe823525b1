//! Tensors on slower storage.

mod spill;
mod swap;

pub use spill::{Absent, Spill, Spilled, SpilledTensor};
pub(crate) use spill::{Away, Spilling, Whereabouts};
