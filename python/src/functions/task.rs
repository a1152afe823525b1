//! Tasks at a provider.

use super::call::Call;
use super::codec::codec::Codec;
use crate::errors::{OrRaise, raise};
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use crate::store::report::report;
use cotensor::{Error, ErrorKind};
use cotensor_functions::Scope;
use pyo3::prelude::*;

/// A task at a provider. Dropping this object does not cancel the task.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Task {
    task: ProcessLocal<cotensor_functions::Task>,
    codec: ProcessLocal<Codec>,
}

impl Task {
    pub(super) fn new(task: cotensor_functions::Task, codec: Codec) -> Self {
        Self { task: ProcessLocal::new(task), codec: ProcessLocal::new(codec) }
    }

    pub(super) fn task(&self, py: Python<'_>) -> PyResult<&cotensor_functions::Task> {
        if self.task.is_ours() {
            return Ok(&self.task);
        }
        let message = "the parent process submitted this task: find it by its task_id in this process";
        Err(raise(py, &Error::new(ErrorKind::Conflict, message)))
    }
}

#[pymethods]
impl Task {
    /// Its number at its provider.
    #[getter]
    fn number(&self) -> u64 {
        self.task.number()
    }

    /// The epoch of its provider.
    #[getter]
    fn epoch(&self) -> u64 {
        self.task.epoch()
    }

    /// Its status: a dict with ``state``, function, times and error.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let task = self.task(py)?;
        let info = py.detach(|| task.status()).or_raise(py)?;
        report(py, || serde_json::to_string(&info))
    }

    /// Waits for at most ``timeout`` seconds until the task ends. Returns its status.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let (task, signals, timeout) = (self.task(py)?, SignalCheck::default(), seconds(py, timeout)?);
        let scope = Call::current_scope(py)?;
        let outcome = py.detach(|| Scope::within(scope, || task.wait_while(timeout, &|| signals.none_raised())));
        signals.result()?;
        let info = outcome.or_raise(py)?;
        report(py, || serde_json::to_string(&info))
    }

    /// Its result. Raises :class:`ConflictError` before the task ends.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let task = self.task(py)?;
        let value = py.detach(|| task.result()).or_raise(py)?;
        self.codec.decode(py, value)
    }

    /// Cancels the task unless it has ended. A running function gets a request to stop. Returns the status.
    fn cancel<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let task = self.task(py)?;
        let info = py.detach(|| task.cancel()).or_raise(py)?;
        report(py, || serde_json::to_string(&info))
    }

    fn __repr__(&self) -> String {
        format!("<Task {} of provider {:x}>", self.number(), self.epoch())
    }
}
