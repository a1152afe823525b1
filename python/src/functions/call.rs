//! The call that a function runs for.

use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One call of a function: its caller, and whether it was cancelled.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Call {
    /// The function's name.
    #[pyo3(get)]
    function: String,
    /// The caller's name for reports.
    #[pyo3(get)]
    client: String,
    cancelled: Arc<AtomicBool>,
}

impl Call {
    pub(super) fn new(function: &str, client: &str, cancelled: Arc<AtomicBool>) -> Self {
        Self { function: function.to_owned(), client: client.to_owned(), cancelled }
    }
}

#[pymethods]
impl Call {
    /// Whether the call was cancelled or its caller has disconnected. Long functions check this from time to time and
    /// return early.
    #[getter]
    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}
