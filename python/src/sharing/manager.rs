//! The manager of tensors that models share.

use super::shared_tensor::SharedTensor;
use super::view::SharedTensorView;
use crate::args;
use crate::errors::OrRaise;
use crate::import::dtype;
use crate::process::ProcessLocal;
use crate::store::holder::program;
use crate::store::report::report;
use crate::store::store::Store;
use cotensor::DType;
use cotensor_core::Device;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Registers tensors that models share, under one memory limit.
///
/// ``max_memory_mb`` limits the memory of all its tensors, in MiB. At the limit, tensors without holders are evicted;
/// without any, :class:`OverBudgetError` names the holders. ``store`` is a store to share, such as
/// ``cotensor.connect()``; by default the manager has a local store. Only the daemon can set a daemon's limit.
///
/// The producer can write a registered tensor until another model first gets it.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct TensorSharingManager {
    manager: ProcessLocal<cotensor::TensorSharingManager>,
    store: Py<Store>,
}

impl TensorSharingManager {
    pub(super) fn over(py: Python<'_>, store: Py<Store>, max_memory_mb: Option<u64>) -> PyResult<Self> {
        let inner = store.get().store(py)?;
        if let Some(mb) = max_memory_mb {
            py.detach(|| inner.limit_memory(Device::Cpu, mb.saturating_mul(1 << 20))).or_raise(py)?;
        }
        let manager = ProcessLocal::new(cotensor::tensor_sharing_manager(inner).with_aliased_memory());
        Ok(Self { manager, store })
    }

    fn manager(&self, py: Python<'_>) -> PyResult<&cotensor::TensorSharingManager> {
        self.manager.get(py, "manager")
    }
}

#[pymethods]
impl TensorSharingManager {
    #[new]
    #[pyo3(signature = (max_memory_mb=None, store=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = args::max_memory_mb)] max_memory_mb: Option<u64>,
        #[pyo3(from_py_with = args::store)] store: Option<Py<Store>>,
    ) -> PyResult<Self> {
        let store = store.map_or_else(|| Py::new(py, Store::in_process()), Ok)?;
        Self::over(py, store, max_memory_mb)
    }

    /// The store of the tensors.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }

    /// Registers a zeroed tensor. ``producer_model``, by default this program, holds it and may write it. ``shape`` is
    /// in elements. ``consumer_models`` are expected to acquire it; see :meth:`analyze_sharing_opportunities`.
    ///
    /// Raises :class:`ConflictError` while a tensor of that name is held, :class:`OverBudgetError` above the memory
    /// limit, :class:`UnsupportedError` for a ``storage_type`` that this machine does not have. A tensor for ``"webgpu"`` or
    /// ``"webnn"`` is on the cpu, with the reason in its ``skipped``.
    #[pyo3(signature = (name, shape, storage_type="cpu", producer_model=None, consumer_models=None, dtype=None))]
    #[allow(clippy::too_many_arguments, reason = "the documented call has these arguments")]
    fn register_shared_tensor(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        shape: &Bound<'_, PyAny>,
        storage_type: &str,
        #[pyo3(from_py_with = args::producer_model)] producer_model: Option<String>,
        #[pyo3(from_py_with = args::consumer_models)] consumer_models: Option<Vec<String>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SharedTensor> {
        let manager = self.manager(py)?;
        let dtype = dtype.map_or(Ok(DType::F32), dtype::dtype)?;
        let shape = dtype::shape(shape)?;
        let producer = producer_model.unwrap_or_else(|| program(py));
        let consumers = consumer_models.unwrap_or_default();
        let consumers: Vec<&str> = consumers.iter().map(String::as_str).collect();
        py.detach(|| manager.register_shared_tensor(&name, &shape, storage_type, &producer, &consumers, dtype))
            .or_raise(py)
            .map(SharedTensor::over)
    }

    /// Acquires the tensor once for a model, by default this program.
    ///
    /// Raises :class:`NotFoundError` if it is not registered or was freed, :class:`RefusedError` if the configuration
    /// keeps it private to its producer.
    #[pyo3(signature = (name, model_name=None))]
    fn get_shared_tensor(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::model_name)] model_name: Option<String>,
    ) -> PyResult<SharedTensor> {
        let manager = self.manager(py)?;
        let model = model_name.unwrap_or_else(|| program(py));
        py.detach(|| manager.get_shared_tensor(&name, &model)).or_raise(py).map(SharedTensor::over)
    }

    /// A view of a registered tensor: ``size`` elements from ``offset`` along each dimension.
    #[pyo3(signature = (tensor_name, view_name, offset, size))]
    fn create_tensor_view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::tensor_name)] tensor_name: String,
        #[pyo3(from_py_with = args::view_name)] view_name: String,
        #[pyo3(from_py_with = args::offsets)] offset: Vec<usize>,
        #[pyo3(from_py_with = args::size)] size: Vec<usize>,
    ) -> PyResult<SharedTensorView> {
        let manager = self.manager(py)?;
        py.detach(|| manager.create_tensor_view(&tensor_name, &view_name, &offset, &size))
            .or_raise(py)
            .map(SharedTensorView::new)
    }

    /// Acquires a tensor that ``from_model`` holds for every model of ``to_models``, or raises and acquires it for
    /// none.
    fn share_tensor_between_models(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::tensor_name)] tensor_name: String,
        from_model: &str,
        to_models: Vec<String>,
    ) -> PyResult<SharedTensor> {
        let manager = self.manager(py)?;
        let models: Vec<&str> = to_models.iter().map(String::as_str).collect();
        py.detach(|| manager.share_tensor_between_models(&tensor_name, from_model, &models))
            .or_raise(py)
            .map(SharedTensor::over)
    }

    /// Releases all acquires of a model, and returns their number.
    fn release_model_tensors(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::model_name)] model_name: String,
    ) -> PyResult<u32> {
        let manager = self.manager(py)?;
        py.detach(|| manager.release_model_tensors(&model_name)).or_raise(py)
    }

    /// Frees every tensor without holders. Returns ``initial_memory_bytes``, ``current_memory_bytes``,
    /// ``freed_memory_bytes``, ``freed_tensors_count``, ``freed_tensors``, ``memory_reduction_percent``,
    /// ``remaining_tensor_count``.
    fn optimize_memory_usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let manager = self.manager(py)?;
        self.store.get().check(py)?;
        report(py, || serde_json::to_string(&manager.optimize_memory_usage()))
    }

    /// Counters: ``total_tensors``, ``total_models``, ``memory_usage_bytes``, ``memory_usage_mb``, ``cache_hits``,
    /// ``cache_misses``, ``hit_rate`` (0 to 1), ``models``, ``sharing_opportunities``, and the store's other counters.
    fn get_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let manager = self.manager(py)?;
        self.store.get().check(py)?;
        report(py, || serde_json::to_string(&manager.get_stats()))
    }

    /// Size of a registered tensor in bytes.
    fn get_tensor_memory_usage(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::tensor_name)] tensor_name: String,
    ) -> PyResult<usize> {
        let manager = self.manager(py)?;
        py.detach(|| manager.get_tensor_memory_usage(&tensor_name)).or_raise(py)
    }

    /// Size in bytes of all tensors that a model holds, each counted once.
    fn get_model_memory_usage(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::model_name)] model_name: String,
    ) -> PyResult<usize> {
        let manager = self.manager(py)?;
        Ok(py.detach(|| manager.get_model_memory_usage(&model_name)))
    }

    /// For every registered tensor, the consumer models that do not hold it yet.
    fn analyze_sharing_opportunities(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Vec<String>>> {
        let manager = self.manager(py)?;
        Ok(py.detach(|| manager.analyze_sharing_opportunities()))
    }

    /// Recommendations that save memory: ``largest_tensors``, ``low_reference_tensors``, ``sharing_opportunities``,
    /// ``total_memory_mb``, ``potential_savings_mb``, ``cache_efficiency`` (0 to 1).
    fn get_optimization_recommendations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let manager = self.manager(py)?;
        self.store.get().check(py)?;
        report(py, || serde_json::to_string(&manager.get_optimization_recommendations()))
    }

    /// Every live tensor of the store and every unpublished tensor; and the copies by reason.
    fn get_diagnostics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let manager = self.manager(py)?;
        self.store.get().check(py)?;
        report(py, || serde_json::to_string(&manager.get_diagnostics()))
    }

    /// An alias of :meth:`get_diagnostics`.
    #[pyo3(name = "getDiagnostics")]
    fn get_diagnostics_of_js<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get_diagnostics(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let manager = self.manager(py)?;
        let stats = py.detach(|| manager.get_stats());
        Ok(format!("<TensorSharingManager, {} tensors, {} bytes>", stats.total_tensors, stats.memory_usage_bytes))
    }
}
