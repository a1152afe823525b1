//! What the fields of arrays are called in Python, and tensors of this package as arrays of others.

use crate::errors::{OrRaise, raise};
use crate::modules::Numpy;
use crate::source::Source;
use crate::tensor::Tensor;
use crate::window::Held;
use cotensor::{DType, Error};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Arc;

/// A numpy dtype, ml_dtypes' bfloat16 included.
pub(crate) fn numpy_dtype(described: &Bound<'_, PyAny>) -> PyResult<Result<DType, Error>> {
    let name: String = described.getattr("name")?.extract()?;
    let order: String = described.getattr("byteorder")?.extract()?;
    if order == ">" {
        let message = format!("dtype {} is big-endian: convert it with .astype({name:?})", described.str()?);
        return Ok(Err(Error::unsupported(message)));
    }
    Ok(name.parse::<DType>().map_err(|_| {
        let hint = if name == "object" { "; objects are not numbers" } else { "" };
        Error::unsupported(format!("dtype {name} is not shared{hint}"))
    }))
}

/// The dtype that somebody names: by its name, numpy's or torch's dtype, or a scalar type.
pub(crate) fn dtype(described: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = described.py();
    let name: String = if let Ok(name) = described.cast::<PyString>() {
        name.extract()?
    } else if let Some(name) = described.getattr_opt("name")? {
        name.extract()?
    } else if let Some(name) = described.getattr_opt("__name__")? {
        name.extract()?
    } else {
        described.str()?.to_string()
    };
    let name = match name.strip_prefix("torch.").unwrap_or(&name) {
        "float" => "float64",
        "int" => "int64",
        name => name,
    };
    name.parse::<DType>().map_err(|error| error.in_field("dtype")).or_raise(py)
}

/// A shape: a number, or numbers. In elements.
pub(crate) fn shape(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    match given.extract::<usize>() {
        Ok(dim) => Ok(vec![dim]),
        Err(_) => given.extract().map_err(|_| {
            let shown = given.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
            let message = format!("{shown} is no shape: numbers of elements, none negative, are expected");
            raise(given.py(), &Error::invalid(message).in_field("shape"))
        }),
    }
}

/// Anything that has to stay while an address is in use.
pub(crate) type Kept = Arc<dyn std::any::Any + Send + Sync>;

/// A numpy array on the memory of something of this module's; its bits as ml_dtypes' bfloat16 where they are that.
pub(crate) fn as_numpy<'py>(array: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let made = Numpy::import(py)?.asarray.bind(py).call1((array,))?;
    if dtype != DType::BF16 {
        return Ok(made);
    }
    let bfloat16 = py.import("ml_dtypes").and_then(|types| types.getattr("bfloat16")).map_err(|_| {
        raise(py, &Error::unsupported("numpy has bfloat16 by the package ml_dtypes only: pip install ml_dtypes"))
    })?;
    made.call_method1("view", (bfloat16,))
}

/// The tensor that an array shows all of, in shared memory and not written in place since; ``None`` for any other array.
#[pyfunction]
pub(crate) fn tensor_of(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    Ok(shown_by(py, array)?.map(Tensor::over))
}

/// As [`tensor_of`], without a lease of its own.
pub(crate) fn shown_by(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Held>>> {
    if let Ok(tensor) = array.cast::<Tensor>() {
        let held = tensor.get().held(py)?;
        return Ok(tensor.get().is_whole(&held).then_some(held));
    }
    Ok(Source::of(array, &"array")?.tensor())
}

/// What numpy asks of `__array__`.
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
                let message = format!("an array of {wanted} would be a copy, and copy=False allows none");
                return Err(raise(py, &Error::invalid(message).in_field("copy")));
            }
            return array.call_method1("astype", (wanted,));
        }
    }
    if copy == Some(true) { array.call_method0("copy") } else { Ok(array.clone()) }
}
