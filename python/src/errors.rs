//! The one map between errors of the library, exceptions of Python, and failures that cross processes.

use crate::exception_args;
use cotensor::{Error, ErrorKind};
use cotensor_functions::{CallError, Cause, Failure};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTracebackMethods, PyType};

/// The most causes of an exception that cross processes.
const CAUSES_MAX: usize = 8;

/// The exception of `cotensor.errors` for an error. Runs Python code.
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
        _ => "IoError",
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

/// Results of the library as results of Python.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}

impl<T> OrRaise<T> for Result<T, CallError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise_call(py, error))
    }
}

/// The exception of a failed call, by `cotensor.errors.remote`.
fn raise_call(py: Python<'_>, error: CallError) -> PyErr {
    let failure = match error {
        CallError::NotCalled(error) => return raise(py, &error),
        CallError::Failed(failure) => failure,
    };
    let make = || {
        let remote = py.import("cotensor.errors")?.getattr("remote")?;
        let args = exception_args::to_python(py, failure.args.as_ref());
        let cause = |cause: Cause| {
            let args = exception_args::to_python(py, cause.args.as_ref());
            (cause.kind, cause.message, cause.trace, args)
        };
        let causes: Vec<_> = failure.causes.into_iter().map(cause).collect();
        remote.call1((failure.kind, failure.message, failure.trace, args, causes))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// The failure of a function, for its caller: the exception's type, message, traceback, arguments and causes.
pub(crate) fn failure(py: Python<'_>, error: &PyErr) -> Failure {
    let Cause { kind, message, trace, args } = cause(py, error);
    let (mut causes, mut next) = (Vec::new(), error.cause(py));
    // The limit also ends a cycle of causes.
    while let Some(found) = next.filter(|_| causes.len() < CAUSES_MAX) {
        causes.push(cause(py, &found));
        next = found.cause(py);
    }
    // SystemExit and KeyboardInterrupt of a function must not end its caller.
    let kind = if error.is_instance_of::<PyException>(py) { kind } else { format!("{kind} (of a function)") };
    Failure { kind, message, trace, args, causes }
}

fn cause(py: Python<'_>, error: &PyErr) -> Cause {
    let kind = error.get_type(py).qualname().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
    let message = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string());
    let trace = error.traceback(py).and_then(|trace| trace.format().ok()).unwrap_or_default();
    Cause { kind, message, trace, args: exception_args::to_json(py, error) }
}
