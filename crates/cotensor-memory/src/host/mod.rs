//! The kinds of host memory, one file or folder each, and what readers map of them.

mod helpers;
mod mapped_file;
mod memfd;
mod parallel_copy;
mod private_mapping;
mod shared_index;
mod shared_words;
mod slab;

pub(crate) use mapped_file::MappedFileMut;
pub use mapped_file::{MappedFile, MappedFileMemory};
pub use memfd::{
    ForeignMemfd, Guarantee, MemfdMemory, MemfdMut, SealedMemfd, check_no_holes, check_sealed, shared_bytes,
};
pub(crate) use memfd::{allocate, import, seal};
pub use parallel_copy::{copy_parallel, copy_parallel_again};
pub use private_mapping::PrivateMapping;
pub use shared_index::{SHARED_INDEX_SLOTS_MAX, SharedIndex, SharedIndexReader};
pub(crate) use shared_words::{SharedWords, WORD_BYTES};
pub use slab::Slab;
