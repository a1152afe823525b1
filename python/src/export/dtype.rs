//! Element types as values of Python.

use cotensor::DType;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class =
        CLASS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("cotensor._dtype")?.getattr("DType")?.unbind()))?;
    Ok(class.bind(py))
}

/// The `cotensor._dtype.DType` of an element type: a string that equals the dtypes of other libraries.
pub(crate) fn dtype_object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    class(py)?.call1((dtype.name(),))
}

/// Whether it is one. Such a string crosses processes as a plain one.
pub(crate) fn is_dtype(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.get_type().is(class(value.py())?))
}
