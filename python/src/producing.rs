//! The allocator of PyTorch's pool in ``Store.producing``: C functions, which PyTorch calls without Python.
//!
//! `torch.cuda.memory.CUDAPluggableAllocator` finds them by their names in this library. Memory of a pool is memory that processes can share,
//! so that `Store.put` publishes a tensor in it without a copy.

use crate::export::device::cuda_memory_of;
use cotensor::Error;
use cotensor_core::sync::lock;
use cotensor_memory::CudaMemory;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;

/// Why the last allocation or the last release failed.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

fn note(error: &Error) {
    *lock(&FAILURE) = Some(error.to_string());
}

/// Allocates `size` bytes of PyTorch's device `device`. Null without memory: PyTorch then gives back what it keeps, tries again, and raises
/// its own error. The memory is complete when the call returns, for all streams.
#[unsafe(no_mangle)]
extern "C" fn cotensor_device_alloc(size: isize, device: c_int, _stream: *mut c_void) -> *mut c_void {
    let Some(len) = usize::try_from(size).ok().filter(|len| *len > 0) else { return null_mut() };
    let address = cuda_memory_of(device.into()).and_then(|memory| memory.produce(len)).inspect_err(note);
    let address = address.ok().and_then(|address| usize::try_from(address).ok());
    address.map_or(null_mut(), without_provenance_mut)
}

/// Ends the address of an allocation, after the work that `stream` has now. Tensors that are published there stay.
///
/// # Safety
/// `pointer` is null or an address of [`cotensor_device_alloc`] that only work of `stream` uses, and that is not used again. `stream` is a stream
/// of PyTorch's device `device`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cotensor_device_free(pointer: *mut c_void, _size: isize, device: c_int, stream: *mut c_void) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let end = |memory: &CudaMemory| unsafe { memory.end_produced(pointer.addr() as u64, stream.addr()) };
    // PyTorch has no way to report an error. The memory stays until the process ends then.
    let _ = cuda_memory_of(device.into()).and_then(end).inspect_err(note);
}

/// Why the last call of the allocator that failed did so; ``None`` if none has failed since the last call of this function.
#[pyfunction]
pub(crate) fn allocator_failure() -> Option<String> {
    lock(&FAILURE).take()
}
