//! Arrays of other libraries, taken from DLPack capsules.

use super::abi::{Device, DlTensor, NAME, NAME_VERSIONED, Unversioned, VERSION, Versioned, dtype_of, is_host};
use crate::errors::OrRaise;
use cotensor::{DType, Error};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array that this module owns. Dropping it frees the array.
pub(crate) struct Imported {
    pub(crate) address: *const u8,
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    _owner: Owner,
}

enum Owner {
    Unversioned(*mut Unversioned),
    Versioned(*mut Versioned),
}

// SAFETY: DLPack allows any thread to call a deleter; the pointers have no other use.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: a consumer calls the deleter once, when it no longer needs the memory.
        unsafe {
            match *self {
                Owner::Unversioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Owner::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        }
    }
}

/// Takes ownership of an array by its `__dlpack__`.
///
/// # Errors
/// As [`open`], and the exception of the array's library.
pub(crate) fn take(array: &Bound<'_, PyAny>) -> PyResult<Imported> {
    open(&capsule_of(array, &PyDict::new(array.py()))?)
}

/// As [`take`], of an array on a CUDA device, whose kind in DLPack is `kind`. Its library lets `stream`, a handle of the driver, wait for the work that writes the
/// array.
///
/// # Errors
/// As [`take`]; `Unsupported` for an array that is not on a CUDA device.
pub(crate) fn take_cuda(array: &Bound<'_, PyAny>, kind: i32, stream: usize) -> PyResult<Imported> {
    let options = PyDict::new(array.py());
    options.set_item("stream", stream)?;
    open_on(&capsule_of(array, &options)?, |found| found == kind)
}

fn capsule_of<'py>(array: &Bound<'py, PyAny>, options: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let newest = options.copy()?;
    newest.set_item("max_version", (VERSION.major, VERSION.minor))?;
    match array.call_method("__dlpack__", (), Some(&newest)) {
        // A library from before DLPack had versions.
        Err(error) if error.is_instance_of::<PyTypeError>(array.py()) => {
            array.call_method("__dlpack__", (), Some(options))
        }
        outcome => outcome,
    }
}

/// Takes ownership of the array in a capsule.
///
/// # Errors
/// `BufferError` for an object that is not an unused capsule, `Unsupported` for a device, a dtype or an array without
/// memory.
pub(crate) fn open(capsule: &Bound<'_, PyAny>) -> PyResult<Imported> {
    open_on(capsule, is_host)
}

fn open_on(capsule: &Bound<'_, PyAny>, is_wanted: impl FnOnce(i32) -> bool) -> PyResult<Imported> {
    let py = capsule.py();
    let (owner, tensor) = own(capsule)?;
    // SAFETY: valid until the owner is dropped.
    let tensor = unsafe { &*tensor };
    if !is_wanted(tensor.device.kind) {
        let (kind, id) = (tensor.device.kind, tensor.device.id);
        return Err(Error::unsupported(format!("the capsule is of device {id} of DLPack kind {kind}"))).or_raise(py);
    }
    let device = tensor.device;
    let dtype = dtype_of(tensor.dtype).or_raise(py)?;
    let rank = usize::try_from(tensor.rank).map_err(|_| PyBufferError::new_err("a negative number of dimensions"))?;
    let numbers = |start: *const i64| match rank {
        0 => Vec::new(),
        // SAFETY: DLPack: one number per dimension.
        _ => unsafe { std::slice::from_raw_parts(start, rank) }.to_vec(),
    };
    let shape: Vec<usize> = numbers(tensor.shape).into_iter().map(|dim| usize::try_from(dim).unwrap_or(0)).collect();
    let item = dtype.size_bytes() as isize;
    let strides = if tensor.strides.is_null() {
        row_major(&shape, item)
    } else {
        let bytes = |stride: i64| isize::try_from(stride).ok()?.checked_mul(item);
        numbers(tensor.strides).into_iter().map(bytes).collect()
    };
    let strides = match strides {
        Some(strides) => strides,
        // No element has an address.
        None if shape.contains(&0) => vec![item; rank],
        None => {
            return Err(Error::invalid(format!("an array of {shape:?} elements with its strides is too large")))
                .or_raise(py);
        }
    };
    if tensor.data.is_null() && !shape.contains(&0) {
        return Err(Error::unsupported("the array has no memory of its own (torch's fake tensors have none)"))
            .or_raise(py);
    }
    let address = tensor.data.cast::<u8>().cast_const().wrapping_byte_add(tensor.byte_offset as usize);
    Ok(Imported { address, device, dtype, shape, strides, _owner: owner })
}

/// Strides in bytes; none beyond the address space.
fn row_major(shape: &[usize], item: isize) -> Option<Vec<isize>> {
    let mut strides = vec![item; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].checked_mul(isize::try_from(shape[axis].max(1)).ok()?)?;
    }
    Some(strides)
}

fn own(capsule: &Bound<'_, PyAny>) -> PyResult<(Owner, *const DlTensor)> {
    let object = capsule.as_ptr();
    // SAFETY: Python is attached and the names are static; renaming a capsule transfers ownership to this side.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME_VERSIONED.as_ptr()) == 1 {
            let managed: *mut Versioned = ffi::PyCapsule_GetPointer(object, NAME_VERSIONED.as_ptr()).cast();
            if (*managed).version.major != VERSION.major {
                return Err(PyBufferError::new_err("the capsule has another major version of DLPack"));
            }
            ffi::PyCapsule_SetName(object, c"used_dltensor_versioned".as_ptr());
            Ok((Owner::Versioned(managed), &raw const (*managed).tensor))
        } else if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) == 1 {
            let managed: *mut Unversioned = ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast();
            ffi::PyCapsule_SetName(object, c"used_dltensor".as_ptr());
            Ok((Owner::Unversioned(managed), &raw const (*managed).tensor))
        } else {
            Err(PyBufferError::new_err("__dlpack__ returned no DLPack capsule, or a used one"))
        }
    }
}
