//! The kinds of host memory, one file or folder each, and what readers map of them.

mod mapped_file;
mod memfd;
mod parallel_copy;
mod private_mapping;
mod shared_index;
mod slab;

pub(crate) use mapped_file::MappedFileMut;
pub use mapped_file::{MappedFile, MappedFileMemory};
pub(crate) use memfd::import;
pub use memfd::{Guarantee, MemfdMemory, MemfdMut, SealedMemfd, check_no_holes, check_sealed, shared_bytes};
pub use parallel_copy::{PARALLEL_COPY_BYTES_MIN, copy_parallel};
pub use private_mapping::PrivateMapping;
pub use shared_index::{SHARED_INDEX_SLOTS_MAX, SharedIndex, SharedIndexReader};
pub use slab::Slab;
