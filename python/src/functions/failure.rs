//! Exceptions across processes.

use crate::errors::raise;
use cotensor_functions::{CallError, Cause, Failure};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyTracebackMethods;

/// The most causes of an exception that cross.
const CAUSES_MAX: usize = 8;

/// What went wrong with a call, as an exception: `cotensor.errors.remote` knows those that Python has, too.
pub(crate) fn raised(py: Python<'_>, error: CallError) -> PyErr {
    let failure = match error {
        CallError::NotCalled(error) => return raise(py, &error),
        CallError::Failed(failure) => failure,
    };
    let make = || {
        let remote = py.import("cotensor.errors")?.getattr("remote")?;
        let causes: Vec<_> = failure.causes.into_iter().map(|cause| (cause.kind, cause.message, cause.trace)).collect();
        remote.call1((failure.kind, failure.message, failure.trace, causes))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// An exception of a function's, for its caller: type, message, and where.
pub(crate) fn failure(py: Python<'_>, error: &PyErr) -> Failure {
    let Cause { kind, message, trace } = described(py, error);
    let (mut causes, mut next) = (Vec::new(), error.cause(py));
    // A cause can lead back to itself.
    while let Some(cause) = next.filter(|_| causes.len() < CAUSES_MAX) {
        causes.push(described(py, &cause));
        next = cause.cause(py);
    }
    // What a process of this machine asks for is not to end this one.
    let kind = if error.is_instance_of::<PyException>(py) { kind } else { format!("{kind} (of a function)") };
    Failure { kind, message, trace, causes }
}

fn described(py: Python<'_>, error: &PyErr) -> Cause {
    let kind = error.get_type(py).qualname().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
    let message = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string());
    let trace = error.traceback(py).and_then(|trace| trace.format().ok()).unwrap_or_default();
    Cause { kind, message, trace }
}
