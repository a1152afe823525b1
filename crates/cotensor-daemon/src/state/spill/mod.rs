//! Tensors on disk: a daemon spills segments without leases to files when memory is needed.

mod file;
mod files;
mod folder;
mod storage;
#[cfg(test)]
mod tests;

pub(crate) use file::SpillFile;
pub(crate) use files::Files;
pub(crate) use folder::{folder_of, remove_folder};
pub(crate) use storage::SpillToFiles;
