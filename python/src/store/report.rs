//! Reports of the library and of a store as Python objects.

use super::backend::Backend;
use super::store::Store;
use crate::errors::{OrRaise, raise};
use cotensor::Error;
use cotensor_client::protocol as p;
use pyo3::prelude::*;

/// JSON as dicts and lists.
pub(crate) fn report<'py>(
    py: Python<'py>,
    text: impl FnOnce() -> serde_json::Result<String> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let text = py.detach(text).map_err(|error| raise(py, &Error::corrupt(error.to_string())))?;
    py.import("json")?.call_method1("loads", (text,))
}

impl Store {
    /// A report as dicts and lists: the daemon's by its method `M`, a local store's by `local`.
    fn reported<'py, M: p::Method<Params = p::Empty, Result = p::Report>>(
        &self,
        py: Python<'py>,
        local: fn(&dyn cotensor::Store) -> serde_json::Result<serde_json::Value>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let backend = self.backend(py)?;
        let value = py.detach(|| match &backend {
            Backend::Client(store) => store.report::<M, serde_json::Value>(),
            Backend::Local(store) => local(&**store).map_err(|error| Error::corrupt(error.to_string())),
        });
        let value = value.or_raise(py)?;
        report(py, || serde_json::to_string(&value))
    }
}

#[pymethods]
impl Store {
    /// Counters: tensors, bytes, hits and misses, copies by reason, evictions.
    fn get_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Stats>(py, |store| serde_json::to_value(store.stats()))
    }

    /// Every tensor with its holders, bytes, device, age and hits; and the copies by reason.
    fn get_diagnostics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Diagnostics>(py, |store| serde_json::to_value(store.diagnostics()))
    }

    /// Recommendations that save memory.
    fn get_recommendations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Recommendations>(py, |store| serde_json::to_value(store.recommendations()))
    }

    /// Frees every tensor without a lease, and reports the freed bytes.
    fn optimize_memory_usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Optimize>(py, |store| serde_json::to_value(store.optimize()))
    }
}
