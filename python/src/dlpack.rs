//! DLPack, versions 0 and 1: arrays as capsules, out and in. The structs are those of dlpack.h.

use crate::errors::OrRaise;
use cotensor::{DType, Error};
use cotensor_core::Layout;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLCUDAHost` and `kDLROCMHost`: memory of the host that a device can reach.
const HOST_OF_CUDA: i32 = 3;
const HOST_OF_ROCM: i32 = 11;
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;
const VERSION: Version = Version { major: 1, minor: 0 };

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Plain {
    data: *mut c_void,
    device: Device,
    rank: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Plain,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Plain,
}

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// An array to give away. Its memory stays as long as `keep`.
pub(crate) struct Given {
    pub(crate) address: NonNull<u8>,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    /// In elements.
    pub(crate) strides: Vec<usize>,
    pub(crate) read_only: bool,
    pub(crate) copied: bool,
    pub(crate) keep: Arc<dyn Any + Send + Sync>,
}

/// What a capsule points into; freed by its consumer, from whatever thread, with or without Python.
struct Context<M> {
    managed: M,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Given {
    /// Elements of `layout`, the first of them at `address`.
    pub(crate) fn new(
        address: NonNull<u8>,
        layout: &Layout,
        read_only: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
        Self { address, dtype: layout.dtype(), shape, strides, read_only, copied: false, keep }
    }

    /// A capsule, of the version that the consumer can take at most.
    pub(crate) fn into_capsule(self, py: Python<'_>, max_version: Option<(u32, u32)>) -> PyResult<Py<PyAny>> {
        match max_version {
            Some((major, _)) if major >= 1 => {
                let flags = if self.read_only { READ_ONLY } else { 0 } | if self.copied { COPIED } else { 0 };
                let context = std::ptr::null_mut();
                let pointer = self.leak(|tensor| Versioned {
                    version: VERSION,
                    context,
                    deleter: Some(delete_versioned),
                    flags,
                    tensor,
                });
                // SAFETY: `leak` made it, and the destructor frees it unless a consumer took it over.
                unsafe { capsule(py, pointer, NAME_VERSIONED, drop_versioned) }
            }
            _ => {
                let context = std::ptr::null_mut();
                let pointer: *mut Context<Managed> =
                    self.leak(|tensor| Managed { tensor, context, deleter: Some(delete) });
                // SAFETY: as above.
                unsafe { capsule(py, pointer, NAME, drop_unversioned) }
            }
        }
    }

    /// On the heap until its deleter is called.
    fn leak<M>(self, managed: impl FnOnce(Plain) -> M) -> *mut Context<M> {
        let signed = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<i64>>();
        let (mut shape, mut strides) = (signed(&self.shape), signed(&self.strides));
        let tensor = Plain {
            data: self.address.as_ptr().cast(),
            device: Device { kind: CPU, id: 0 },
            rank: self.shape.len() as i32,
            dtype: data_type(self.dtype),
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        // Moving the vectors does not move what they point to.
        Box::into_raw(Box::new(Context {
            managed: managed(tensor),
            _shape: shape,
            _strides: strides,
            _keep: self.keep,
        }))
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: called once, by the consumer or the capsule, with what `leak` made: `context` of it is the allocation.
    unsafe { free::<Managed>(managed) }
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe { free::<Versioned>(managed) }
}

/// # Safety
/// `managed` is inside a `Context` that `leak` made and nobody freed.
unsafe fn free<M>(managed: *mut M) {
    let start = managed.wrapping_byte_sub(std::mem::offset_of!(Context<M>, managed));
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(start.cast::<Context<M>>()) });
}

/// # Safety
/// `context` is what `destructor` frees.
unsafe fn capsule<M>(
    py: Python<'_>,
    context: *mut Context<M>,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Py<PyAny>> {
    let managed = context.wrapping_byte_add(std::mem::offset_of!(Context<M>, managed));
    // SAFETY: the pointer is not null and the name is static; Python is attached.
    let object = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(destructor)) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }.map(Bound::unbind)
}

unsafe extern "C" fn drop_unversioned(object: *mut ffi::PyObject) {
    // SAFETY: a capsule of this module in its destructor; a consumer renames what it takes over.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(object: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME_VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(object, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// An array that was taken over; given back when dropped.
pub(crate) struct Taken {
    pub(crate) address: *const u8,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    _owner: Owner,
}

enum Owner {
    Plain(*mut Managed),
    Versioned(*mut Versioned),
}

// SAFETY: DLPack's deleters may be called from any thread; nothing else is done with the pointers.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: a consumer calls the deleter once, when it needs the memory no more.
        unsafe {
            match *self {
                Owner::Plain(managed) => {
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

/// Where an array lies: its device's kind and number.
pub(crate) fn device_of(array: &Bound<'_, PyAny>) -> PyResult<(i32, i32)> {
    array.call_method0("__dlpack_device__")?.extract()
}

/// Whether the host can read what lies there.
pub(crate) fn is_host(kind: i32) -> bool {
    matches!(kind, CPU | HOST_OF_CUDA | HOST_OF_ROCM)
}

/// Takes an array over.
pub(crate) fn take(array: &Bound<'_, PyAny>) -> PyResult<Taken> {
    let py = array.py();
    let newest = PyDict::new(py);
    newest.set_item("max_version", (VERSION.major, VERSION.minor))?;
    let capsule = match array.call_method("__dlpack__", (), Some(&newest)) {
        // Made before there were versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => array.call_method0("__dlpack__")?,
        outcome => outcome?,
    };
    open(&capsule)
}

/// Takes over what is in a capsule.
pub(crate) fn open(capsule: &Bound<'_, PyAny>) -> PyResult<Taken> {
    let py = capsule.py();
    let (owner, tensor) = own(capsule)?;
    // SAFETY: the owner has it until it is dropped.
    let tensor = unsafe { &*tensor };
    if !is_host(tensor.device.kind) {
        return Err(Error::unsupported("the array lies on a device")).or_raise(py);
    }
    let dtype = known(tensor.dtype).or_raise(py)?;
    let rank = usize::try_from(tensor.rank).map_err(|_| PyBufferError::new_err("a negative number of dimensions"))?;
    let numbers = |start: *const i64| match rank {
        0 => Vec::new(),
        // SAFETY: DLPack: as many as there are dimensions.
        _ => unsafe { std::slice::from_raw_parts(start, rank) }.to_vec(),
    };
    let shape: Vec<usize> = numbers(tensor.shape).into_iter().map(|dim| usize::try_from(dim).unwrap_or(0)).collect();
    let item = dtype.size_bytes() as isize;
    let strides = if tensor.strides.is_null() {
        let mut strides = vec![item; rank];
        for axis in (1..rank).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1) as isize;
        }
        strides
    } else {
        numbers(tensor.strides).into_iter().map(|stride| stride as isize * item).collect()
    };
    if tensor.data.is_null() && !shape.contains(&0) {
        return Err(Error::unsupported("the array has no memory of its own (torch's fake tensors have none)"))
            .or_raise(py);
    }
    let address = tensor.data.cast::<u8>().cast_const().wrapping_byte_add(tensor.byte_offset as usize);
    Ok(Taken { address, dtype, shape, strides, _owner: owner })
}

fn own(capsule: &Bound<'_, PyAny>) -> PyResult<(Owner, *const Plain)> {
    let object = capsule.as_ptr();
    // SAFETY: Python is attached, the names are static; what is renamed is this side's to delete.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME_VERSIONED.as_ptr()) == 1 {
            let managed: *mut Versioned = ffi::PyCapsule_GetPointer(object, NAME_VERSIONED.as_ptr()).cast();
            if (*managed).version.major != VERSION.major {
                return Err(PyBufferError::new_err("a DLPack of another major version"));
            }
            ffi::PyCapsule_SetName(object, c"used_dltensor_versioned".as_ptr());
            Ok((Owner::Versioned(managed), &raw const (*managed).tensor))
        } else if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) == 1 {
            let managed: *mut Managed = ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast();
            ffi::PyCapsule_SetName(object, c"used_dltensor".as_ptr());
            Ok((Owner::Plain(managed), &raw const (*managed).tensor))
        } else {
            Err(PyBufferError::new_err("__dlpack__ gave no DLPack capsule, or one that was used already"))
        }
    }
}

const TYPES: [(DType, u8); 13] = [
    (DType::Bool, 6),
    (DType::U8, 1),
    (DType::I8, 0),
    (DType::U16, 1),
    (DType::I16, 0),
    (DType::F16, 2),
    (DType::BF16, 4),
    (DType::U32, 1),
    (DType::I32, 0),
    (DType::F32, 2),
    (DType::U64, 1),
    (DType::I64, 0),
    (DType::F64, 2),
];

fn data_type(dtype: DType) -> DataType {
    let code = TYPES.iter().find(|(known, _)| *known == dtype).map_or(3, |(_, code)| *code);
    DataType { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
}

fn known(found: DataType) -> Result<DType, Error> {
    let known = TYPES.iter().map(|(dtype, _)| *dtype).find(|&dtype| data_type(dtype) == found);
    known.ok_or_else(|| {
        let what = match found.code {
            5 => "complex numbers".to_owned(),
            code => format!("elements of {} bits (DLPack type {code}, {} lanes)", found.bits, found.lanes),
        };
        Error::unsupported(format!("{what} are not shared: view them as numbers that are"))
    })
}
