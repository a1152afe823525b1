//! The C functions. Their parameters are those of `cuda.h` in CUDA 12 and 13; a result is a `CUresult`.
//!
//! The caller promises what the driver's documentation demands: a pointer is null or points to a value of its type.
// The names are the driver's. Programs find them with `dlsym`, so nothing in this crate uses the functions.
#![allow(non_snake_case)]

mod device;
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
