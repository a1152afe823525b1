//! A library with functions of NVIDIA's driver (`libcuda.so.1`, and some of `libnvidia-ml.so.1`) and no hardware, for tests on machines without a GPU.
//!
//! A test starts a device with [`FakeCuda::start`], and loads the library at [`FakeCuda::library`] where a program loads the driver.
//! The folder of the library is the hardware: all processes that load it from there share its devices and their memory.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | the folder: allocations as files, the handles that keep them, settings |
//! | `process` | the driver of one process: handles, addresses, contexts, streams |
//! | `api` | the C functions |
//! | [`FakeCuda`] | starts and controls a machine in tests |
//!
//! The functions behave as NVIDIA's documentation says, and as an H200 did (docs/labs/gpu.md). Where both are silent, the
//! library returns an error; the module `api` compares them function by function. Four behaviours find mistakes of programs:
//! - **Addresses** of a device cannot be read or written by the host.
//! - **Streams run late**: work waits until a function must wait for it. Bytes of a program that does not synchronize are wrong.
//! - **Work for an unmapped address** ends the context, as an illegal address does.
//! - **A captured stream** prohibits calls of threads whose mode is not relaxed; they make the capture invalid.
//!
//! # Memory
//! An allocation is a file in the folder. It exists while any process has its handle, a mapping or an exported descriptor. An
//! exported descriptor is a character device, as NVIDIA's is: `/dev/zero`, with a lock of the open file description on the bytes
//! that the allocation's number names. All duplicates of the descriptor share the lock, in all processes, and the kernel releases
//! it with the last one. So this library needs no exception in the daemon, which accepts character devices only.
//!
//! The interface is C, so this crate uses `unsafe`. No part of the product depends on it.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod api;
mod codes;
mod fake;
mod machine;
mod process;

pub use codes::{
    CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, ILLEGAL_ADDRESS, NO_DEVICE, NOT_INITIALIZED,
    NOT_SUPPORTED, OUT_OF_MEMORY, UNKNOWN,
};
pub use fake::{FakeCuda, GRANULARITY};
