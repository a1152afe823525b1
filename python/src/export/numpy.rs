//! numpy arrays on memory of this process, by the array interface.

use crate::errors::raise;
use crate::imports::Numpy;
use cotensor::{DType, Error};
use cotensor_core::Layout;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ptr::NonNull;

/// A numpy array of an object with `__array_interface__`. bfloat16 becomes ml_dtypes' bfloat16.
///
/// # Errors
/// `Unsupported` for bfloat16 without ml_dtypes.
pub(crate) fn as_numpy<'py>(exporter: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let py = exporter.py();
    let array = Numpy::import(py)?.asarray.bind(py).call1((exporter,))?;
    if dtype != DType::BF16 {
        return Ok(array);
    }
    let bfloat16 = py.import("ml_dtypes").and_then(|types| types.getattr("bfloat16")).map_err(|_| {
        raise(py, &Error::unsupported("numpy needs the package ml_dtypes for bfloat16: pip install ml_dtypes"))
    })?;
    array.call_method1("view", (bfloat16,))
}

/// The result of `__array__`, given the array without a copy.
///
/// # Errors
/// `Invalid` where `dtype` needs a copy and `copy` is false.
pub(crate) fn as_array<'py>(
    array: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    if let Some(dtype) = dtype {
        let wanted = py.import("numpy")?.call_method1("dtype", (dtype,))?;
        if !array.getattr("dtype")?.eq(&wanted)? {
            if copy == Some(false) {
                let message = format!("an array of {wanted} is a copy, which copy=False forbids");
                return Err(raise(py, &Error::invalid(message).in_field("copy")));
            }
            return array.call_method1("astype", (wanted,));
        }
    }
    if copy == Some(true) { array.call_method0("copy") } else { Ok(array.clone()) }
}

/// The dict of `__array_interface__`, version 3.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    layout: &Layout,
    address: NonNull<u8>,
    read_only: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let item = layout.dtype().size_bytes();
    let code = match layout.dtype() {
        DType::Bool => 'b',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        // numpy has no bfloat16: its bits as integers.
        DType::BF16 => 'u',
        _ => 'f',
    };
    let order = if item == 1 { '|' } else { '<' };
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", format!("{order}{code}{item}"))?;
    interface.set_item("shape", PyTuple::new(py, layout.shape())?)?;
    interface.set_item("strides", PyTuple::new(py, layout.strides().iter().map(|stride| stride * item))?)?;
    interface.set_item("data", (address.as_ptr() as usize, read_only))?;
    Ok(interface)
}
