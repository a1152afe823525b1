//! Tensors on disk: a daemon spills segments without leases to files when memory is needed. Here is which segments are in which files; `spill_files`
//! writes and reads them.

mod file;
mod table;

pub(crate) use file::SpillFile;
pub(crate) use table::SpillTable;
