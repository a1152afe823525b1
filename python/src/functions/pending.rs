//! Thousands of calls and tasks that one thread waits for.

use super::failure::raised;
use super::task::Task;
use super::value::Terms;
use crate::errors::raise;
use crate::interrupt::seconds;
use crate::process::Own;
use cotensor::{Error, ErrorKind};
use cotensor_client::functions::Done;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Instant;

/// Calls and tasks of one provider, each under a number of the caller's choice: one thread hears of whichever is done.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Pending {
    inner: Own<(Arc<cotensor_client::functions::Pending>, Terms)>,
}

impl Pending {
    pub(super) fn new(pending: Arc<cotensor_client::functions::Pending>, terms: Terms) -> Self {
        Self { inner: Own::new((pending, terms)) }
    }

    fn pending(&self, py: Python<'_>) -> PyResult<&cotensor_client::functions::Pending> {
        if self.inner.is_ours() {
            return Ok(&self.inner.0);
        }
        let message = "these calls belong to the process that this one was forked from";
        Err(raise(py, &Error::new(ErrorKind::Conflict, message)))
    }
}

#[pymethods]
impl Pending {
    /// The life of the provider.
    #[getter]
    fn epoch(&self) -> u64 {
        self.inner.0.epoch()
    }

    /// How many have not come back from ``next()``.
    #[getter]
    fn count(&self) -> usize {
        self.inner.0.count()
    }

    /// Calls a function and does not wait.
    #[pyo3(signature = (number, name, args=None, kwargs=None, *, timeout=None))]
    fn call(
        &self,
        py: Python<'_>,
        number: u64,
        name: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (pending, timeout) = (self.pending(py)?, seconds(py, timeout)?);
        let none = pyo3::types::PyTuple::empty(py);
        let terms = self.inner.1.writing_to(pending.outlet());
        let arguments = terms.arguments(args.unwrap_or(none.as_any()), kwargs)?;
        py.detach(|| pending.call(number, name, arguments, timeout)).map_err(|error| raised(py, error))
    }

    /// Has ``next()`` tell when a task of this provider has ended, or ``timeout`` is over.
    #[pyo3(signature = (number, task, *, timeout=None))]
    fn wait_for(&self, py: Python<'_>, number: u64, task: &Bound<'_, Task>, timeout: Option<f64>) -> PyResult<()> {
        let (pending, timeout, task) = (self.pending(py)?, seconds(py, timeout)?, task.get().task(py)?);
        py.detach(|| pending.wait_for(number, task, timeout)).map_err(|error| raised(py, error))
    }

    /// Waits until some are done, for at most ``patience`` seconds: their numbers, each with its result, or with an exception
    /// and ``True``.
    fn next(&self, py: Python<'_>, patience: f64) -> PyResult<Vec<(u64, Py<PyAny>, bool)>> {
        let (pending, patience) = (self.pending(py)?, seconds(py, Some(patience))?);
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        let done = py.detach(|| pending.next(&|| until.is_none_or(|until| Instant::now() < until)));
        let outcome = |done| match done {
            Done::Call(value) => self.inner.1.open(py, value.map_err(|error| raised(py, error))?),
            Done::Task(info) => {
                let info = info.map_err(|error| raised(py, error))?;
                Ok(crate::store::report(py, || serde_json::to_string(&info))?.unbind())
            }
        };
        let each = |(number, done)| match outcome(done) {
            Ok(value) => (number, value, false),
            Err(error) => (number, error.into_value(py).into_any(), true),
        };
        Ok(done.into_iter().map(each).collect())
    }

    fn __repr__(&self) -> String {
        format!("<Pending, {} of provider {:x}>", self.inner.0.count(), self.inner.0.epoch())
    }
}
