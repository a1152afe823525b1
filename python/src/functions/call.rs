//! The call that a function runs for.

use crate::process::ProcessLocal;
use cotensor_functions::{Context, Scope};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::Arc;

/// One call of a function: its caller, its time, and whether it was cancelled.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Call {
    /// The function's name.
    #[pyo3(get)]
    function: String,
    /// The caller's name for reports.
    #[pyo3(get)]
    client: String,
    scope: ProcessLocal<Arc<Scope>>,
}

impl Call {
    pub(super) fn new(context: &Context) -> Self {
        let (function, client) = (context.function().to_owned(), context.client().to_owned());
        Self { function, client, scope: ProcessLocal::new(Arc::clone(context.scope())) }
    }

    /// The scope of the calls that the current Python code makes: that of `cotensor.functions.current_call()`. `None` in a
    /// forked child of a function, which goes on after the call.
    pub(super) fn current_scope(py: Python<'_>) -> PyResult<Option<Arc<Scope>>> {
        static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let variable = || {
            let module = py.import("cotensor.functions.call_context")?;
            Ok::<_, PyErr>(module.getattr("_current")?.unbind())
        };
        let call = CURRENT.get_or_try_init(py, variable)?.bind(py).call_method0(intern!(py, "get"))?;
        let scope = call.cast::<Call>().ok().map(|call| &call.get().scope).filter(|scope| scope.is_ours());
        Ok(scope.map(|scope| Arc::clone(scope)))
    }
}

#[pymethods]
impl Call {
    /// Whether the call was cancelled, its time is over, or its caller has disconnected. Long functions check this from time
    /// to time and return early.
    #[getter]
    fn cancelled(&self) -> bool {
        self.scope.is_cancelled()
    }

    /// The seconds until the call's time is over. ``None`` without a limit.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        self.scope.time_left().map(|left| left.as_secs_f64())
    }
}
