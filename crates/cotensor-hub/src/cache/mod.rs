//! The cache of the hub on this machine, in the layout that `huggingface_hub` writes, so that both programs use the same
//! files:
//!
//! ```text
//! models--OWNER--NAME/
//!     refs/REVISION            the commit of a branch or tag
//!     trees/COMMIT.json        the list of the repository's files at a commit
//!     snapshots/COMMIT/FILE    a symbolic link to the file's blob
//!     blobs/ETAG               a file's bytes; the name is their hash
//! .locks/models--OWNER--NAME/ETAG.lock
//! ```

mod digest;
mod files;
mod repository;
mod snapshot;
mod state;
mod tree;
mod verified;

pub(crate) use digest::Digest;
pub(crate) use files::read;
pub(crate) use repository::Repository;
pub use snapshot::{blob_folders, name_of_snapshot};
pub(crate) use state::FileState;
pub(crate) use tree::{FILES_MAX, RepoFile};
pub(crate) use verified::VerifiedFiles;

/// The start of a model's folder in the cache.
pub(crate) const MODEL_FOLDER: &str = "models--";
/// The folder of the snapshots in a model's folder.
const SNAPSHOTS: &str = "snapshots";
/// The folder of the blobs in a model's folder, and of the blobs that models share in the cache.
const BLOBS: &str = "blobs";
