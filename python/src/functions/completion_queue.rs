//! `CompletionQueue`: one thread waits for many calls and tasks of one provider.

use super::call::Call;
use super::codec::codec::Codec;
use super::task::Task;
use crate::errors::OrRaise;
use crate::interrupt::seconds;
use crate::process::ProcessLocal;
use crate::store::report::report;
use cotensor_functions::{Completion, Scope};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Instant;

/// Calls and tasks of one provider, each under a number that the caller chooses. One thread waits for all of them.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct CompletionQueue {
    queue: ProcessLocal<Arc<cotensor_functions::CompletionQueue>>,
    codec: ProcessLocal<Codec>,
}

impl CompletionQueue {
    pub(super) fn new(queue: Arc<cotensor_functions::CompletionQueue>, codec: Codec) -> Self {
        Self { queue: ProcessLocal::new(queue), codec: ProcessLocal::new(codec) }
    }

    fn queue(&self, py: Python<'_>) -> PyResult<&cotensor_functions::CompletionQueue> {
        self.queue.get(py, "completion queue").map(|queue| &**queue)
    }
}

#[pymethods]
impl CompletionQueue {
    /// The epoch of the provider.
    #[getter]
    fn epoch(&self) -> u64 {
        self.queue.epoch()
    }

    /// The calls and tasks that ``wait()`` has not returned.
    #[getter]
    fn count(&self) -> usize {
        self.queue.count()
    }

    /// Whether the provider has ended. Every later call fails.
    #[getter]
    fn closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Calls a function without waiting.
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
        let (queue, timeout) = (self.queue(py)?, seconds(py, timeout)?);
        let none = pyo3::types::PyTuple::empty(py);
        let codec = self.codec.writing_to(queue.allocator());
        let arguments = codec.arguments(args.unwrap_or(none.as_any()), kwargs)?;
        let scope = Call::current_scope(py)?;
        py.detach(|| Scope::within(scope, || queue.call(number, name, arguments, timeout))).or_raise(py)
    }

    /// Adds a task of this provider. ``wait()`` returns its number when the task ends, or after ``timeout`` seconds.
    #[pyo3(signature = (number, task, *, timeout=None))]
    fn add_task(&self, py: Python<'_>, number: u64, task: &Bound<'_, Task>, timeout: Option<f64>) -> PyResult<()> {
        let (queue, timeout, task) = (self.queue(py)?, seconds(py, timeout)?, task.get().task(py)?);
        let scope = Call::current_scope(py)?;
        py.detach(|| Scope::within(scope, || queue.add_task(number, task, timeout))).or_raise(py)
    }

    /// Cancels a call, or ends the wait for a task. ``wait()`` does not return its number.
    fn remove(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        let queue = self.queue(py)?;
        py.detach(|| queue.cancel(number));
        Ok(())
    }

    /// Waits for at most ``timeout`` seconds until some are done. Returns the number of each with its result and
    /// ``False``, or with its exception and ``True``.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(u64, Py<PyAny>, bool)>> {
        let (queue, timeout) = (self.queue(py)?, seconds(py, Some(timeout))?);
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let done = py.detach(|| queue.wait(&|| end.is_none_or(|end| Instant::now() < end)));
        let outcome = |done| match done {
            Completion::Call(value) => self.codec.decode(py, value.or_raise(py)?),
            Completion::Task(info) => {
                let info = info.or_raise(py)?;
                Ok(report(py, || serde_json::to_string(&info))?.unbind())
            }
        };
        let each = |(number, done)| match outcome(done) {
            Ok(value) => (number, value, false),
            Err(error) => (number, error.into_value(py).into_any(), true),
        };
        Ok(done.into_iter().map(each).collect())
    }

    fn __repr__(&self) -> String {
        format!("<CompletionQueue, {} of provider {:x}>", self.queue.count(), self.queue.epoch())
    }
}
