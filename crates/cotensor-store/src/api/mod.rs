//! The traits of a store, one for each job. [`Store`] is all of them.

mod blobs;
mod computations;
mod memory;
mod names;
mod reports;
mod store;
mod tensors;

pub use blobs::BlobStore;
pub use computations::{Claim, ComputationStore};
pub use memory::MemoryControl;
pub use names::NameStore;
pub use reports::StoreReports;
pub use store::Store;
pub use tensors::TensorStore;
