//! Tensors on spill storage, such as a disk.
//!
//! The store decides which tensors are spilled and when; a [`SpillStorage`] keeps their bytes. Unleased tensors are
//! spilled in the order of eviction, all tensors of a segment together. A spilled tensor keeps its name and its
//! identity.

mod set;
mod storage;

pub(crate) use set::{Location, SpillState, SpilledSet};
pub use set::{SpilledTensor, SpilledTensorInfo};
pub use storage::{SpillStorage, SpilledSegment};
