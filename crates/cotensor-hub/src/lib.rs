//! Models by name: the cache of the model hub on this machine, shared with every other program of the hub, and downloads
//! into it.
//!
//! [`Hub::folder`] finds the folder of a model by path or by id. [`Hub::pull`] downloads the files of a model that this
//! program reads: the configuration and the graphs of its family.
//!
//! [`Hub::folder`] looks in the cache first, then downloads: `needed.rs` chooses the files, and `download/` gives a file its name when its
//! hash is verified.

mod cache;
mod cached;
mod download;
mod hub;
mod id;
mod needed;
mod progress;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

pub use cache::{blob_folders, name_of_snapshot};
pub use cached::CachedModel;
pub use hub::{Hub, ModelFile, Pulled, files_of, no_folder};
pub use id::ModelId;
pub use settings::{Limits, RECORDS_FOLDER, Settings};
