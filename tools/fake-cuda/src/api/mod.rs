//! The C functions. Their parameters are those of `cuda.h` in CUDA 12 and 13; a result is a `CUresult`.
//!
//! The caller promises what the driver's documentation demands: a pointer is null or points to a value of its type.
//!
//! # Beside the documentation
//! Results by their names without `CUDA_ERROR_`, as NVIDIA's documentation of CUDA 12 and 13 lists them. Not in the table: `NOT_INITIALIZED`, which all
//! functions but the first four return before `cuInit` and after a fork, and the results of a lost context, which all calls have (documented for
//! `ILLEGAL_ADDRESS`). `NOT_PERMITTED` and `DEINITIALIZED`, which the documentation lists for most functions, occur by `fail` only.
//! "Measured" is what an H200 did (docs/labs/gpu.md).
//!
//! | function | documented results that occur here | where the documentation is silent, or this library does otherwise |
//! |---|---|---|
//! | `cuInit` | `INVALID_VALUE` for flags; `NO_DEVICE` | |
//! | `cuDriverGetVersion` | `INVALID_VALUE` | works before `cuInit` |
//! | `cuGetErrorName`, `cuGetErrorString` | `INVALID_VALUE` and null for an unknown result | |
//! | `cuDeviceGetCount`, `cuDeviceGet`, `cuDeviceGetName`, `cuDeviceGetUuid_v2`, `cuDeviceTotalMem_v2` | `INVALID_VALUE`, `INVALID_DEVICE` | a name that does not fit is an error |
//! | `cuDevicePrimaryCtxRetain` | `INVALID_DEVICE` | takes no memory of the device; measured: hundreds of MiB |
//! | `cuDevicePrimaryCtxRelease_v2`, `cuDevicePrimaryCtxReset_v2` | `INVALID_DEVICE`, `INVALID_CONTEXT` | mappings stay after a reset |
//! | `cuCtxPushCurrent_v2`, `cuCtxPopCurrent_v2`, `cuCtxGetId` | `INVALID_CONTEXT` | the next context of a device has the handle of the former one |
//! | `cuCtxSynchronize` | `INVALID_CONTEXT` | prohibited while a stream of the context is captured: `STREAM_CAPTURE_UNSUPPORTED` |
//! | `cuMemGetAllocationGranularity` | `INVALID_VALUE` | one value for both options |
//! | `cuMemCreate` | `INVALID_VALUE` unless the length is whole units, `OUT_OF_MEMORY`, `INVALID_DEVICE` | needs no context (measured); new memory is not zero |
//! | `cuMemRelease` | `INVALID_VALUE` | the memory stays while a mapping or a descriptor exists: documented, and measured across processes |
//! | `cuMemExportToShareableHandle` | `INVALID_VALUE` | a descriptor is an open character device (measured), and does not tell the allocation |
//! | `cuMemImportFromShareableHandle` | `INVALID_VALUE` | `UNKNOWN` for a descriptor that is no handle (measured) |
//! | `cuMemGetAllocationPropertiesFromHandle` | `INVALID_VALUE` | the same properties for imported memory |
//! | `cuMemAddressReserve` | `INVALID_VALUE`, `OUT_OF_MEMORY` | `NOT_SUPPORTED` for an alignment and for a wanted address, which the driver takes |
//! | `cuMemAddressFree`, `cuMemUnmap` | `INVALID_VALUE` unless the range is that of the reservation | an unmapping does not wait for work, which then loses the context |
//! | `cuMemMap` | `INVALID_VALUE` | `NOT_SUPPORTED` for another length than that of the allocation (measured); maps whole reservations only |
//! | `cuMemSetAccess` | `INVALID_VALUE`, `INVALID_DEVICE` | `NOT_SUPPORTED` for another device without peer access |
//! | `cuMemGetInfo_v2` | `INVALID_CONTEXT` | |
//! | `cuMemsetD8Async`, `cuMemcpy*Async_v2` | `INVALID_CONTEXT`, `INVALID_VALUE` | `INVALID_VALUE` at once for a write to a read-only mapping (measured); a kernel's write is not imitated |
//! | `cuPointerGetAttribute` | `INVALID_CONTEXT`, `INVALID_VALUE` | only the ordinal of the device |
//! | `cuStreamCreate`, `cuStreamSynchronize`, `cuStreamDestroy_v2`, `cuStreamWaitEvent` | `INVALID_CONTEXT`, `INVALID_VALUE`, `INVALID_HANDLE` | a destroyed stream runs its work first; the driver runs it later |
//! | `cuEventCreate`, `cuEventRecord`, `cuEventSynchronize`, `cuEventDestroy_v2` | `INVALID_CONTEXT`, `INVALID_VALUE`, `INVALID_HANDLE` | |
//! | `cuStreamIsCapturing`, `cuStreamBeginCapture_v2`, `cuStreamEndCapture`, `cuThreadExchangeStreamCaptureMode` | `INVALID_VALUE`, `ILLEGAL_STATE`, `STREAM_CAPTURE_*` | which calls are "potentially unsafe" is not documented: here, all that give work, wait, or change memory |
//!
//! Where the middle column does not say what a call does, programs of this repository do not depend on it, but for what was measured.
// The names are the driver's. Programs find them with `dlsym`, so nothing in this crate uses the functions.
#![allow(non_snake_case)]

mod device;
mod hip;
mod management;
mod memory;
mod work;

use crate::codes::{INVALID_VALUE, Outcome};

/// `CUmemLocation`.
#[repr(C)]
struct Location {
    kind: i32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct AllocationProperties {
    kind: i32,
    handle_kinds: i32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct AccessDescription {
    location: Location,
    flags: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: i32 = 1;

/// Writes a result of a function.
///
/// # Safety
/// `out` is null or can be written.
unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller promises that it can be written.
    unsafe { out.write(value) };
    Ok(())
}

/// Reads an argument.
///
/// # Safety
/// `pointer` is null or points to a value.
unsafe fn get<'a, T>(pointer: *const T) -> Outcome<&'a T> {
    // SAFETY: the caller promises it.
    unsafe { pointer.as_ref() }.ok_or(INVALID_VALUE)
}
