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
mod copies;
pub mod count;
mod embedded;
mod evict;
mod holders;
pub mod home;
mod host;
mod lease;
mod names;
mod notes;
mod record;
mod report;
mod reservation;
mod sharing;
pub mod slots;
mod spill;
mod store;
mod swap;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{Refusal, SharingConfig};
pub use contents::{Begun, Pack};
pub use embedded::{EmbeddedStore, EmbeddedStoreBuilder};
pub use host::Share;
pub use lease::{Lease, TensorView};
pub use report::{Copies, Diagnostics, OptimizeReport, RecentCopy, Recommendations, Stats, TensorInfo};
pub use reservation::{Reservation, Ticket};
pub use sharing::{Exposed, LogSink, SharedTensor, SharedTensorView, TensorSharingManager};
pub use spill::{Absent, Spill, Spilled, SpilledTensor};
pub use store::{
    Claim, ContentSource, ContentSpec, CopyReason, Holder, Key, NAME_BYTES_MAX, Retention, Store, TensorId, TensorSpec,
    check_name,
};
pub use watch::{Restored, Watch};
