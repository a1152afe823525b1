//! Memory that processes share: sealed memfds, mapped files of Cotensor's own cache, and the cache itself.
//!
//! The only crate below the bindings that may use `unsafe`: mapping memory is unsafe by nature. Every block says
//! which guard, which bounds check and which keep-alive it relies on.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod ahead;
mod backing;
mod cache;
mod copy;
mod descriptors;
mod exposed;
mod free;
mod heap;
mod idle;
mod index;
mod inherited;
mod map;
mod mapped_file;
mod memfd;
mod pack;
mod peer;
mod pool;
mod private;
mod process;
mod seal;
mod signals;
mod slab;
pub mod usage;
mod written;

pub use cache::PackCache;
pub use copy::{PARALLEL_COPY_BYTES_MIN, copy_parallel};
pub use descriptors::{duplicate, out_of_descriptors, raise_descriptor_limit};
pub use heap::trim_heap;
pub use index::{INDEX_SLOTS_MAX, Index, IndexReader};
pub use inherited::inherited_descriptors;
pub use mapped_file::{MappedFile, MappedFileMemory};
pub use memfd::{MemfdMemory, MemfdMut, SealedMemfd};
pub use pack::{Entry, parse_table};
pub use peer::{Peer, socket_peer};
pub use pool::{MemfdPool, PoolUsage};
pub use private::PrivateCopy;
pub use process::ProcessMemory;
pub use seal::{Guarantee, check_no_holes, check_sealed};
pub use signals::{ignore_file_size_signal, is_ignored};
pub use slab::Slab;
