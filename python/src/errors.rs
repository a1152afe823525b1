//! Errors as exceptions of `cotensor.errors`.

use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// The exception of an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Invalid => "InvalidError",
        ErrorKind::Corrupt => "CorruptError",
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::Conflict => "ConflictError",
        ErrorKind::OverBudget => "OverBudgetError",
        ErrorKind::Refused => "RefusedError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Engine => "EngineError",
        ErrorKind::TimedOut => "TimedOutError",
        ErrorKind::Unreachable => "NoDaemonError",
        _ => "SystemFailure",
    };
    make(py, class, error).unwrap_or_else(|failure| failure)
}

fn make(py: Python<'_>, class: &str, error: &Error) -> PyResult<PyErr> {
    let class = py.import("cotensor.errors")?.getattr(class)?.cast_into::<PyType>()?;
    let details = PyDict::new(py);
    details.set_item("field", error.field())?;
    details.set_item("file", error.file().map(|file| file.display().to_string()))?;
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&details))?))
}

/// Results of the library as results of Python's.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}
