//! The store: names and versions, leases, budget, eviction, and computing a thing once.
//!
//! Everything above uses the trait [`Store`] only, so that the embedded store and a client of the
//! daemon can take each other's place.

mod store;

pub use store::{
    Claim, ContentSource, ContentSpec, CopyReason, Holder, Key, Retention, Store, TensorId, TensorSpec,
};
