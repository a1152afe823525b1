//! numpy arrays on memory of this process, by the array interface.

use crate::errors::raise;
use crate::imports::Numpy;
use cotensor::{DType, Error};
use cotensor_core::Layout;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ptr::NonNull;

/// A numpy array of an object with `__array_interface__`. bfloat16 and floats of 8 bits get the dtypes of ml_dtypes.
///
/// # Errors
/// `Unsupported` for these without ml_dtypes.
pub(crate) fn as_numpy<'py>(exporter: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let py = exporter.py();
    let array = Numpy::import(py)?.asarray.bind(py).call1((exporter,))?;
    if !matches!(dtype, DType::BF16 | DType::F8E4M3FN | DType::F8E5M2) {
        return Ok(array);
    }
    let there = py.import("ml_dtypes").and_then(|types| types.getattr(dtype.name())).map_err(|_| {
        let message = format!("numpy needs the package ml_dtypes for {dtype}: pip install ml_dtypes");
        raise(py, &Error::unsupported(message))
    })?;
    array.call_method1("view", (there,))
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
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", type_string(layout.dtype()))?;
    interface.set_item("shape", PyTuple::new(py, layout.shape())?)?;
    let item = layout.dtype().size_bytes();
    interface.set_item("strides", PyTuple::new(py, layout.strides().iter().map(|stride| stride * item))?)?;
    interface.set_item("data", (address.as_ptr() as usize, read_only))?;
    Ok(interface)
}

/// The element type, as numpy's array interface writes it.
fn type_string(dtype: DType) -> String {
    let item = dtype.size_bytes();
    let code = match dtype {
        DType::Bool => 'b',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        // numpy has none of these: their bits as integers.
        DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 => 'u',
        DType::C64 | DType::C128 => 'c',
        _ => 'f',
    };
    let order = if item == 1 { '|' } else { '<' };
    format!("{order}{code}{item}")
}
