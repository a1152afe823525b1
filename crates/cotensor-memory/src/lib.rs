//! Memory that processes share: sealed memfds, slabs, mapped cache files, the pack cache on top of them, and memory of devices.
//!
//! | module | contents |
//! |---|---|
//! | `mapping` | one `mmap` and what belongs to it: huge pages, aliased mappings, cached mappings, dirty pages |
//! | `ranges` | the free ranges of a slab |
//! | `host` | the kinds of host memory: memfd, slab, mapped file; private mappings and the shared index over them |
//! | `reuse` | allocators that reuse memory: the memfd pool, prefaulting, blocks, the memory of local stores |
//! | `channel` | frames that one process writes again and again, and others read |
//! | `pack_cache` | the on-disk cache of weights |
//! | `device` | memory of GPUs and of simulated devices; what programs take of GPUs |
//! | `testing` (feature) | limits that sandboxes set |
//! | [`process`] | this process and others: memory use, descriptors, credentials, signals |
//!
//! A *slab* is one memfd, or one allocation of a device, for many small tensors of one client. A *channel* is a producer and its readers; a
//! *frame* is one of the values that the producer writes again and again into the same memory. The *mapping cache* keeps private mappings
//! for the next reader. A *window* is a private mapping of a whole slab, in which readers of its small tensors share pages. Memory is
//! *prefaulted* when its pages are made before they are written. *Helpers* are threads of a process that share large copies of its other
//! threads. Published memory that is leased or held is never written or reused.
//!
//! State of the whole process: the open memfds, the count of mappings, the helpers, the work of the heap, the memories of
//! CUDA devices and the last reading of the memory that is left. No connection has such state.
//!
//! Each module uses only those above it in this order: `process`, `mapping`, `ranges`, `host`, `reuse`, `channel` and `pack_cache`.
//! `device` is beside `host`.
//!
//! This is the only crate below the bindings that may use `unsafe`. The comment of each block names the guard, the
//! bounds check and the keep-alive that it relies on.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod channel;
mod device;
mod host;
mod mapping;
mod pack_cache;
pub mod process;
mod ranges;
mod reuse;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use channel::{
    ChannelFiles, ChannelSize, ChannelWriter, FrameHold, Loan, Policy, RingReader, frame_count, is_page_taken,
    is_ring_closed, is_ring_open, reader_lock, wake_readers,
};
pub use device::{
    CopyStream, CudaBytes, CudaDevice, CudaDriver, CudaMemory, DEVICES_VARIABLE, DRIVER_VARIABLE, GpuUsage,
    MANAGEMENT_VARIABLE, ProducedPlace, SimulatedMemory, gpu_usage, gpu_usage_by,
};
pub use host::{
    ForeignMemfd, Guarantee, MappedFile, MappedFileMemory, MemfdMemory, MemfdMut, PrivateMapping,
    SHARED_INDEX_SLOTS_MAX, SealedMemfd, SharedIndex, SharedIndexReader, Slab, check_no_holes, check_sealed,
    copy_parallel, copy_parallel_again, shared_bytes,
};
pub use pack_cache::{CacheEntry, PackCache, PackEntry, Verification, parse_pack_table};
pub use reuse::{BLOCK_BYTES_MAX, BlockLimits, Blocks, GiveBack, LocalMemory, MemfdPool, PoolStats, Unused};
