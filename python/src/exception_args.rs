//! Arguments of exceptions as the JSON of the protocol, and back.

use cotensor_client::hex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Value as Json, json};

/// The deepest nesting of an argument.
const DEPTH_MAX: usize = 8;

/// The arguments of an exception. `None` if one is not a number, a truth value, text, bytes, `None`, or a list or a tuple of
/// them.
pub(super) fn to_json(py: Python<'_>, error: &PyErr) -> Option<Vec<Json>> {
    let value = error.value(py);
    let args = if error.is_instance_of::<PyOSError>(py) {
        // With the file's name, which `args` omits.
        value.call_method0("__reduce__").ok()?.cast::<PyTuple>().ok()?.get_item(1).ok()?
    } else {
        value.getattr("args").ok()?
    };
    args.cast::<PyTuple>().ok()?.iter().map(|arg| argument(&arg, 0)).collect()
}

fn argument(value: &Bound<'_, PyAny>, depth: usize) -> Option<Json> {
    if depth > DEPTH_MAX {
        None
    } else if value.is_none() {
        Some(Json::Null)
    } else if let Ok(value) = value.cast::<PyBool>() {
        Some(json!(value.is_true()))
    } else if value.is_exact_instance_of::<PyInt>() {
        value.extract::<i64>().ok().map(|number| json!(number))
    } else if value.is_exact_instance_of::<PyFloat>() {
        value.extract::<f64>().ok().filter(|number| number.is_finite()).map(|number| json!(number))
    } else if value.is_exact_instance_of::<PyString>() {
        value.extract::<String>().ok().map(Json::String)
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        Some(json!({"$bytes": hex::encode(bytes.as_bytes())}))
    } else if let Ok(values) = value.cast_exact::<PyTuple>() {
        let values: Option<Vec<_>> = values.iter().map(|value| argument(&value, depth + 1)).collect();
        values.map(|values| json!({"$tuple": values}))
    } else if let Ok(values) = value.cast_exact::<PyList>() {
        let values: Option<Vec<_>> = values.iter().map(|value| argument(&value, depth + 1)).collect();
        values.map(Json::Array)
    } else {
        None
    }
}

/// The arguments of a received exception. `None` without, and for an unknown form.
pub(super) fn to_python(py: Python<'_>, args: Option<&Vec<Json>>) -> Option<Py<PyAny>> {
    let args: PyResult<Vec<_>> = args?.iter().map(|arg| value(py, arg, 0)).collect();
    Some(PyTuple::new(py, args.ok()?).ok()?.into_any().unbind())
}

fn value<'py>(py: Python<'py>, json: &Json, depth: usize) -> PyResult<Bound<'py, PyAny>> {
    let unknown = || PyValueError::new_err("an unknown form of an argument");
    let values = |values: &[Json]| values.iter().map(|json| value(py, json, depth + 1)).collect::<PyResult<Vec<_>>>();
    Ok(match json {
        _ if depth > DEPTH_MAX => return Err(unknown()),
        Json::Null => py.None().into_bound(py),
        Json::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => PyInt::new(py, number).into_any(),
            (None, Some(number)) => PyFloat::new(py, number).into_any(),
            (None, None) => return Err(unknown()),
        },
        Json::String(text) => PyString::new(py, text).into_any(),
        Json::Array(all) => PyList::new(py, values(all)?)?.into_any(),
        Json::Object(entries) => match entries.iter().next() {
            Some((tag, Json::Array(all))) if tag == "$tuple" => PyTuple::new(py, values(all)?)?.into_any(),
            Some((tag, Json::String(digits))) if tag == "$bytes" => {
                PyBytes::new(py, &hex::decode(digits).ok_or_else(unknown)?).into_any()
            }
            _ => return Err(unknown()),
        },
    })
}
