//! The files of spilled segments: their folder, writing them and reading them back. `state/spill/` decides which files there are.

mod content;
mod files;
mod folder;
mod storage;
#[cfg(test)]
mod tests;

pub(crate) use files::Files;
pub(crate) use folder::folder_of;
pub(crate) use storage::SpillToFiles;
