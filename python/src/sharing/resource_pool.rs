//! The models of a folder, each loaded once.

use super::manager::TensorSharingManager;
use super::pooled_model::PooledModel;
use crate::args;
use crate::errors::OrRaise;
use crate::process::ProcessLocal;
use crate::settings::configured;
use crate::store::store::Store;
use cotensor::model::engine::EngineOptions;
use cotensor::{HardwarePreferences, Runtime};
use cotensor_client::settings::ENGINE;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A runtime over a store. The fastest engine that supports a model runs it, unless one is named.
///
/// # Errors
/// As [`Store::cache`] and [`Runtime::with_engine`].
pub(crate) fn runtime_over(
    py: Python<'_>,
    store: &Store,
    threads: Option<usize>,
    engine: Option<&str>,
) -> PyResult<Arc<Runtime>> {
    let backend = store.store(py)?;
    let derived = store.cache(py)?.map(|cache| cache as Arc<_>);
    py.detach(|| Runtime::with_engine(backend, engine, EngineOptions { threads, derived })).or_raise(py)
}

/// The models in one folder, for many callers. Each model is loaded once. At most ``max_connections`` calls run at a
/// time.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct ResourcePool {
    pool: ProcessLocal<cotensor::ResourcePool>,
    store: Py<Store>,
}

#[pymethods]
impl ResourcePool {
    #[new]
    #[pyo3(signature = (models, max_connections=4, store=None, threads=None, engine=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = args::models)] models: PathBuf,
        #[pyo3(from_py_with = args::max_connections)] max_connections: usize,
        #[pyo3(from_py_with = args::store)] store: Option<Py<Store>>,
        #[pyo3(from_py_with = args::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = args::engine)] engine: Option<String>,
    ) -> PyResult<Self> {
        let configured = if engine.is_none() { configured(py, &ENGINE)? } else { None };
        let engine = engine.or_else(|| configured.map(|name| name.to_string_lossy().into_owned()));
        let store = store.map_or_else(|| Py::new(py, Store::in_process()), Ok)?;
        let runtime = runtime_over(py, store.get(), threads, engine.as_deref())?;
        let pool = cotensor::ResourcePool::new(runtime, models, max_connections).or_raise(py)?;
        Ok(Self { pool: ProcessLocal::new(pool), store })
    }

    /// The store of weights and results.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }

    /// The first available device of ``priority_list``, and the devices before it, each with the reason why it is skipped.
    /// Raises :class:`UnsupportedError` if none is available.
    #[staticmethod]
    #[allow(clippy::type_complexity, reason = "names with reasons")]
    fn choose_device(
        py: Python<'_>,
        #[pyo3(from_py_with = args::priority_list)] priority_list: Vec<String>,
    ) -> PyResult<(String, Vec<(String, String)>)> {
        let preferences = HardwarePreferences { priority_list, ..HardwarePreferences::default() };
        let choice = preferences.choose().or_raise(py)?;
        Ok((choice.device.to_string(), choice.skipped))
    }

    /// A manager of the tensors in the pool's store. It limits the store to ``max_memory_mb`` MiB, weights included.
    #[pyo3(signature = (max_memory_mb=None))]
    fn setup_tensor_sharing(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::max_memory_mb)] max_memory_mb: Option<u64>,
    ) -> PyResult<TensorSharingManager> {
        self.pool.get(py, "pool")?;
        TensorSharingManager::over(py, self.store.clone_ref(py), max_memory_mb)
    }

    /// The model in the folder ``model_name``, or of this name on the hub, on the first available device of ``priority_list``.
    /// ``model_type`` is a kind (``text_embedding``), a modality (``text``) or a family (``bert``), which the model has to
    /// match. ``precision`` is a variant of its graphs (``fp16``) or the variant's number of bits.
    #[pyo3(signature = (model_type, model_name, priority_list=None, precision=None))]
    fn get_model(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::model_type)] model_type: String,
        #[pyo3(from_py_with = args::model_name)] model_name: String,
        #[pyo3(from_py_with = args::priority_list)] priority_list: Option<Vec<String>>,
        #[pyo3(from_py_with = args::precision)] precision: Option<String>,
    ) -> PyResult<PooledModel> {
        let pool = self.pool.get(py, "pool")?;
        let mut preferences = HardwarePreferences { precision, ..HardwarePreferences::default() };
        if let Some(priority_list) = priority_list {
            preferences.priority_list = priority_list;
        }
        let model = py.detach(|| pool.get_model(&model_type, &model_name, &preferences)).or_raise(py)?;
        Ok(PooledModel::new(model, Arc::clone(pool.runtime().store())))
    }
}
