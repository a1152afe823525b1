//! Memory of CUDA devices, by the driver's virtual memory management.
//!
//! | module | contents |
//! |---|---|
//! | `functions` | the functions of the driver, by the names in its library |
//! | `driver` | the library, loaded at run time |
//! | `error` | the errors of the driver's results |
//! | `handle` | allocations and their descriptors |
//! | `mapping` | addresses of an allocation, read-only or writable |
//! | `range` | the memory of a slab, and ranges of it |
//! | `lendable` | memory whose address other code may use |
//! | `context` | the primary context, in which bytes are copied |
//! | `devices` | the devices, and their numbers on the machine |
//! | `opened` | a device in use |
//! | `segment` | `SegmentMut` and `Segment` |
//! | `slab` | one allocation for many small tensors of a producer |
//! | `produced` | memory that another library of this process takes for its arrays |
//! | `produced_slab` | the same as a slab of a store |
//! | `memory` | `Memory`, and the memories that all stores of a process share |
//! | `array` | memory of other libraries of this process |
//!
//! An allocation has the handle type "POSIX descriptor". Its memory exists while any process has a handle, a mapping or a descriptor
//! of it, so producer, consumers and daemon may end in any order. Making, exporting, importing and mapping need no context (seen
//! on an H200, docs/labs/gpu.md); only copies do.
//!
//! A reader's mapping is read-only. That guards against mistakes only: the receiver of a descriptor can map it writable.
//!
//! Python: `export/device.rs` gives arrays, `import/cuda_array.rs` takes them, `producing.rs` is the allocator of `Store.producing`, and
//! `store/device_copy.rs` copies for another GPU. Tests run on the driver of tools/fake-cuda.
//!
//! **Unsafe** code calls the driver. Each block relies on three facts: the library is a driver, which its user has named or installed;
//! the types in `functions` are those of `cuda.h`; addresses come from a [`Mapping`](mapping::Mapping), which is mapped while it exists,
//! and ranges in it are checked by its users.

mod array;
mod context;
mod devices;
mod driver;
mod error;
mod functions;
mod handle;
mod lendable;
mod mapping;
mod memory;
mod opened;
mod produced;
mod produced_slab;
mod range;
mod segment;
mod slab;
#[cfg(test)]
mod tests;

pub use array::CudaBytes;
pub use context::CopyStream;
pub(super) use devices::number_of;
pub use devices::{CudaDevice, DEVICES_VARIABLE};
pub use driver::{CudaDriver, DRIVER_VARIABLE};
pub use memory::CudaMemory;
pub use produced::ProducedPlace;
