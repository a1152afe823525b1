//! The store inside a process: one value that has all components and the traits of a store. The components (names, leases, claims, budgets,
//! eviction, spilled tensors, blobs, reports) do not know it. Here are the acts in which several of them take part.

mod blobs;
mod builder;
mod hosting;
mod names;
mod restore;
mod room;
mod spill;
mod state;
mod store;
mod waits;

pub use builder::LocalStoreBuilder;
pub use state::LocalStore;
pub use waits::{ClaimFuture, UploadFuture};
