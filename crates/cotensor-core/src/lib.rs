//! The types that all crates share: dtype, shape, layout, device, kind, space, errors; and the traits [`Memory`] and
//! [`Segment`], through which all crates reach the bytes of tensors.
//!
//! This crate has no file system, no threads, no mapping and no unsafe code, and
//! builds for `wasm32-unknown-unknown`.
//!
//! | owns the bytes | shares them | borrows them |
//! |---|---|---|
//! | [`SegmentMut`]: one writer, not yet visible | [`Segment`] behind `Arc`: immutable, many readers | `&[u8]` from [`Segment::bytes`] |
//!
//! A *memory* makes *segments* of one kind: allocations of one memory space. A memfd, a mapped file and shared memory of a device have a
//! descriptor.

mod blob_cache;
mod derived_files;
mod device;
mod dtype;
pub mod elements;
mod error;
mod file_stamp;
mod hash;
mod heap;
mod kind;
mod layout;
mod segment;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod units;
// Programs for wasm32 have one thread, and no clock that this module could read.
#[cfg(not(target_family = "wasm"))]
pub mod waiting;

pub use blob_cache::{BlobCache, BlobLocation, PackMut};
pub use derived_files::{DerivedFiles, Hold};
pub use device::Device;
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use file_stamp::FileStamp;
pub use hash::{ContentHash, Hasher, Space};
pub use heap::HeapMemory;
pub use kind::Kind;
pub use layout::{Layout, RANK_MAX, Slice, TENSOR_BYTES_MAX};
#[cfg(unix)]
pub use segment::SlabMemory;
pub use segment::{ALIGNMENT, Memory, MemoryKind, Segment, SegmentMut, copy_by_host, padded, range_within};
pub use units::{parse_rate, parse_size, parse_time, size};
