//! Tasks that a provider has taken on.

use super::failure::raised;
use super::value::Terms;
use crate::errors::raise;
use crate::interrupt::{Patience, seconds};
use crate::process::Own;
use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;

/// A task of a provider's. Dropping this changes nothing about it.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Task {
    inner: Own<(cotensor_client::functions::Task, Terms)>,
}

impl Task {
    pub(super) fn new(task: cotensor_client::functions::Task, terms: Terms) -> Self {
        Self { inner: Own::new((task, terms)) }
    }

    pub(super) fn task(&self, py: Python<'_>) -> PyResult<&cotensor_client::functions::Task> {
        if self.inner.is_ours() {
            return Ok(&self.inner.0);
        }
        let message = "this task was submitted by the process that this one was forked from: look it up by its number";
        Err(raise(py, &Error::new(ErrorKind::Conflict, message)))
    }
}

#[pymethods]
impl Task {
    /// Its number with its provider.
    #[getter]
    fn number(&self) -> u64 {
        self.inner.0.number()
    }

    /// The life of the provider that it belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.inner.0.epoch()
    }

    /// How far it is: a dict with its ``state``, function, times and error.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let task = self.task(py)?;
        let info = py.detach(|| task.status()).map_err(|error| raised(py, error))?;
        crate::store::report(py, || serde_json::to_string(&info))
    }

    /// Waits until it has ended, for at most ``timeout`` seconds; how far it is then.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let (task, patience, timeout) = (self.task(py)?, Patience::default(), seconds(py, timeout)?);
        let outcome = py.detach(|| task.wait_while(timeout, &|| patience.goes_on()));
        patience.check()?;
        let info = outcome.map_err(|error| raised(py, error))?;
        crate::store::report(py, || serde_json::to_string(&info))
    }

    /// Its result, as often as it is asked for; a conflict while it has not ended.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let task = self.task(py)?;
        let value = py.detach(|| task.result()).map_err(|error| raised(py, error))?;
        self.inner.1.open(py, value)
    }

    /// Cancels it, unless it has ended; a function that runs is asked to stop. How far it is then.
    fn cancel<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let task = self.task(py)?;
        let info = py.detach(|| task.cancel()).map_err(|error| raised(py, error))?;
        crate::store::report(py, || serde_json::to_string(&info))
    }

    fn __repr__(&self) -> String {
        format!("<Task {} of provider {:x}>", self.number(), self.epoch())
    }
}
