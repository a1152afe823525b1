//! Blobs (weights) and notes by hash.

mod notes;
mod request;

pub(crate) use notes::Notes;
pub use request::{BlobPack, UploadPlan, blob_key};
pub(crate) use request::{Missing, distinct, only, packed};
