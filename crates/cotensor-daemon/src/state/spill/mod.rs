//! Tensors on disk: a daemon spills segments without leases to files when memory is needed. Here is which segments are in which files; `spill_files`
//! writes and reads them.

mod table;

pub(crate) use table::SpillTable;
