//! Contents and notes by hash.

mod contents;
mod notes;

pub use contents::{BlobPack, UploadPlan};
pub(crate) use contents::{begin, lease_contents, publish};
pub(crate) use notes::Notes;
