//! Tensors on slower storage.

mod spill;
mod swap;

pub(crate) use spill::{Away, Spilling, Whereabouts};
pub use spill::{SpillStorage, SpilledSegment, SpilledTensor, SpilledTensorInfo};
