//! Python's buffer protocol: `memoryview(tensor)`, `file.write(tensor)`, `hashlib.sha256(tensor)`.

use super::tensor::Tensor;
use crate::export::buffer::Buffer;
use cotensor::DType;
use cotensor_core::Layout;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::impl_::pyclass::{PyClassImpl, PyClassItems};
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// `Py_buffer`, which the limited API contains since Python 3.11, and which is the same in earlier versions.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// `PyBUF_WRITABLE` and the other flags of a request.
const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const ND: c_int = 0x8;
const STRIDES: c_int = 0x10 | ND;
const C_CONTIGUOUS: c_int = 0x20 | STRIDES;
const F_CONTIGUOUS: c_int = 0x40 | STRIDES;
const ANY_CONTIGUOUS: c_int = 0x80 | STRIDES;

/// What a view points to, and the owner of the memory. `PyBuffer::internal` owns it.
struct Exported {
    shape: Vec<isize>,
    strides: Vec<isize>,
    _memory: Buffer,
}

/// The element type as Python's `struct` module and numpy write it; `None` where they have no code.
fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::U16 => c"H",
        DType::I16 => c"h",
        DType::F16 => c"e",
        DType::U32 => c"I",
        DType::I32 => c"i",
        DType::F32 => c"f",
        DType::U64 => c"Q",
        DType::I64 => c"q",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// Whether the memory has the form that a consumer requests.
///
/// # Errors
/// `BufferError` for a request to write, and for a form that would need a copy.
fn check_request(layout: &Layout, flags: c_int) -> PyResult<()> {
    let wants = |flag: c_int| flags & flag == flag;
    if wants(WRITABLE) {
        return Err(PyBufferError::new_err("a published tensor is read-only: copy it with bytearray(tensor)"));
    }
    let contiguous = layout.is_contiguous();
    // Column-major and row-major are equal when at most one dimension exceeds 1.
    let column_major = contiguous && layout.shape().iter().filter(|&&dim| dim > 1).count() <= 1;
    let served = if wants(F_CONTIGUOUS) && !wants(ANY_CONTIGUOUS) {
        column_major
    } else if wants(C_CONTIGUOUS) || wants(ANY_CONTIGUOUS) || !wants(STRIDES) {
        contiguous
    } else {
        true
    };
    if served {
        Ok(())
    } else {
        Err(PyBufferError::new_err("this view is not contiguous in memory: use tensor.tobytes()"))
    }
}

/// Fills `view` with a read-only view of the shared memory. The view keeps the memory.
///
/// # Safety
/// `view` is a `Py_buffer` to fill.
unsafe fn fill(tensor: &Bound<'_, Tensor>, view: *mut PyBuffer, flags: c_int) -> PyResult<()> {
    let layout = &tensor.get().layout;
    check_request(layout, flags)?;
    let dtype = layout.dtype();
    let wants = |flag: c_int| flags & flag == flag;
    let missing = || {
        PyBufferError::new_err(format!("{dtype} has no code of the buffer protocol: use tensor.numpy() or view(0, …)"))
    };
    let format = if wants(FORMAT) { format(dtype).ok_or_else(missing)?.as_ptr().cast_mut() } else { ptr::null_mut() };
    let item = dtype.size_bytes();
    let memory = tensor.get().numpy_buffer(tensor.py())?;
    let sizes = |values: &[usize], unit: usize| values.iter().map(|&value| (value * unit) as isize).collect();
    let buf = memory.address().as_ptr().cast();
    let mut exported =
        Box::new(Exported { shape: sizes(layout.shape(), 1), strides: sizes(layout.strides(), item), _memory: memory });
    let (shape, strides) = (exported.shape.as_mut_ptr(), exported.strides.as_mut_ptr());
    let filled = PyBuffer {
        buf,
        obj: tensor.clone().into_ptr(),
        len: layout.size_bytes() as isize,
        itemsize: item as isize,
        readonly: 1,
        ndim: layout.shape().len() as c_int,
        format,
        shape: if wants(ND) { shape } else { ptr::null_mut() },
        strides: if wants(STRIDES) { strides } else { ptr::null_mut() },
        suboffsets: ptr::null_mut(),
        internal: Box::into_raw(exported).cast(),
    };
    // SAFETY: the caller's promise. `internal` keeps what the other fields point to, and the consumer releases `obj`.
    unsafe { view.write(filled) };
    Ok(())
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, view: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: Python calls the slots of a class attached, with an instance of it.
    let (py, tensor) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<Tensor>())
    };
    // SAFETY: Python passes a view to fill.
    match unsafe { fill(&tensor, view, flags) } {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: as above. A view without an owner is not filled.
            unsafe { (*view).obj = ptr::null_mut() };
            error.restore(py);
            -1
        }
    }
}

unsafe extern "C" fn release_buffer(_: *mut ffi::PyObject, view: *mut PyBuffer) {
    // SAFETY: Python passes a view that `fill` has filled, once.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Exported>()) });
}

// pyo3 has these slots only for Python 3.11 and later, where they became part of the limited API. Python 3.9 and 3.10
// accept them in the specification of a class too, by the same numbers and with the same struct.
pyo3::inventory::submit! {
    type Inventory = <Tensor as PyClassImpl>::Inventory;
    Inventory::new(PyClassItems {
        methods: &[],
        slots: &[
            ffi::PyType_Slot { slot: ffi::Py_bf_getbuffer, pfunc: get_buffer as *mut c_void },
            ffi::PyType_Slot { slot: ffi::Py_bf_releasebuffer, pfunc: release_buffer as *mut c_void },
        ],
    })
}
