//! The store: names and versions, leases, budget, eviction, and computing a thing once.
//!
//! Everything above uses the trait [`Store`] only, so that the embedded store and a client of the
//! daemon can take each other's place. Atomics and locks follow one rule: a counter that only informs is
//! `Relaxed`; whatever decides a tensor's life is behind the lock of its [`count::LeaseCount`].

mod budget;
mod claims;
mod clock;
mod config;
mod contents;
pub mod count;
mod embedded;
mod evict;
mod lease;
mod names;
mod notes;
mod record;
mod report;
mod sharing;
mod store;
mod sync;

pub use clock::{Clock, ManualClock, SystemClock};
pub use config::SharingConfig;
pub use embedded::{EmbeddedStore, EmbeddedStoreBuilder};
pub use lease::{Lease, Reservation, TensorView, Ticket};
pub use report::{Copies, Diagnostics, OptimizeReport, Recommendations, Stats, TensorInfo};
pub use sharing::{SharedTensor, SharedTensorView, TensorSharingManager};
pub use store::{Claim, ContentSource, ContentSpec, CopyReason, Holder, Key, Retention, Store, TensorId, TensorSpec};
