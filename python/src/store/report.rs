//! Reports of the library as Python objects.

use crate::errors::raise;
use cotensor::Error;
use pyo3::prelude::*;

/// JSON as dicts and lists.
pub(crate) fn report<'py>(
    py: Python<'py>,
    text: impl FnOnce() -> serde_json::Result<String> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let text = py.detach(text).map_err(|error| raise(py, &Error::corrupt(error.to_string())))?;
    py.import("json")?.call_method1("loads", (text,))
}
