//! A model's folder on a disk: reads files of bounded size and detects changes.

mod files;
mod stamp;

pub use files::ModelFolder;
pub(crate) use files::{canonical_folder, read_bounded};
pub(crate) use stamp::{FolderStamp, changed};
