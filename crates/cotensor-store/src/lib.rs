//! The store: names and versions, leases, budgets, eviction, spilling, and computations.
//!
//! Users see the trait [`Store`] only, so that the local store and a client of the daemon are interchangeable.
//! Counters for reports are `Relaxed` atomics; the life of a tensor is decided under the lock of its lease count.
//!
//! | word | meaning |
//! |---|---|
//! | tensor, version | dtype, shape, strides and offset in a segment, under a name; immutable once published. Publishing the name again makes a new version |
//! | reservation | bytes taken from the budget, and an unpublished tensor in them |
//! | lease, holder | the claim of one holder, a named part of a process, on a tensor. The count of leases decides a tensor's life |
//! | group, member | a tensor of bytes with a table of named members, each with a dtype and a shape: one name, one version, one lease |
//! | view | a bounds-checked strided part of a tensor, which keeps the tensor |
//! | blob, pack | content found by its hash; a file or segment of many blobs with a table |
//! | claim, ticket | the request for the result of a key; the right, given to one caller, to compute it |
//! | spilled | on disk instead of in memory; name, version and identity stay |
//!
//! The crate names no memory kind, and maps and opens no file. A dropped [`Lease`] is released in `leases/lease.rs`, and
//! `leases/count.rs` decides whether the tensor may be freed. `eviction/candidates.rs` has the order of eviction, and `local/room/`
//! makes room.

mod api;
pub mod backend;
mod blobs;
mod budget;
mod clock;
mod computations;
mod eviction;
mod leases;
mod local;
pub mod log;
mod names;
mod persist;
mod publish;
mod reports;
mod spill;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod types;

pub use api::{BlobStore, Claim, ComputationStore, MemoryControl, NameStore, Store, StoreReports, TensorStore};
pub use blobs::{BlobPack, UploadPlan, blob_key};
pub use budget::SegmentCharge;
pub use clock::{Clock, ManualClock, SystemClock};
pub use leases::{Lease, TensorView};
pub use local::{ClaimFuture, LocalStore, LocalStoreBuilder, UploadFuture};
pub use names::{ChangesFuture, VersionWord, VersionWords, WordTable};
pub use persist::{RestoredTensor, StoreObserver};
pub use publish::{Reservation, Ticket};
pub use reports::LISTED;
pub use spill::{SpillStorage, SpilledSegment, SpilledTensor, SpilledTensorInfo};
pub use types::{
    BlobSource, BlobSpec, ChangePosition, Copies, CopyReason, DeviceStats, Diagnostics, EveryVersion, Expected, Holder,
    KeptTensors, Key, MEMBER_NAMES_BYTES_MAX, MEMBERS_MAX, METADATA_BYTES_MAX, Member, Members, NAME_BYTES_MAX,
    NameChange, NameChanges, NameFilter, NamedVersion, OptimizeReport, Publication, RecentCopy, Recommendations,
    Refusal, Retention, SharingConfig, Stats, TensorId, TensorInfo, TensorSpec, check_name,
};
