//! Shared tensors by name. Models acquire and release them; a [`TensorSharingManager`] registers them in a
//! [`Store`](cotensor_store::Store). A [`ResidentCopy`] is the copy of a published tensor on a device.
//!
//! The crate uses stores by their traits only, so that a local store and a client of the daemon can replace each other.

mod access;
mod active;
mod diagnostics;
mod lifecycle;
mod manager;
mod memory;
mod published;
mod reports;
mod resident;
mod shared;
mod spec;
mod state;
mod view;

pub use cotensor_store::log::LogSink;
pub use manager::{Registration, TensorSharingManager};
pub use memory::ViewMemory;
pub use resident::{Resident, ResidentCopy};
pub use shared::SharedTensor;
pub use view::SharedTensorView;
