//! A tensor that models acquire and release.

use super::view::SharedTensorView;
use super::written::shown;
use super::{log, ours};
use crate::arg;
use crate::arrays;
use crate::arrays::as_array;
use crate::errors::OrRaise;
use crate::process::Own;
use crate::source::Source;
use crate::store::{program, report};
use cotensor::DType;
use cotensor_memory::EmbeddedMemory;
use cotensor_store::CopyReason;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor that models acquire and release by name, counted for each.
///
/// Its producer holds it once from the start, and writes it (``numpy()``, ``torch()``, ``write()``) until another model first
/// acquires it. That publishes it: from then on it is immutable, and what the producer writes through arrays made before is
/// the producer's own. Two acquires by one model need two releases. When nobody holds it, and no view or array of it is left,
/// its memory is given back.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct SharedTensor {
    tensor: Own<cotensor_sharing::SharedTensor>,
}

impl SharedTensor {
    pub(super) fn over(tensor: cotensor_sharing::SharedTensor) -> Self {
        Self { tensor: Own::new(tensor) }
    }

    fn tensor(&self, py: Python<'_>) -> PyResult<&cotensor_sharing::SharedTensor> {
        ours(py, "tensor", &self.tensor)
    }

    /// What shows all of it.
    fn shown<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.tensor(py)?;
        let origin = vec![0; tensor.shape().len()];
        let view = py.detach(|| tensor.create_view("array", &origin, tensor.shape())).or_raise(py)?;
        shown(py, &Arc::new(Own::new(view)), true)
    }
}

#[pymethods]
impl SharedTensor {
    /// A zeroed tensor of its own, in no manager. ``shape`` in elements; ``storage_type`` is ``"cpu"``, others raise
    /// :class:`UnsupportedError`; ``producer_model`` is this program's name unless it says otherwise.
    #[new]
    #[pyo3(signature = (name, shape, dtype=None, storage_type="cpu", producer_model=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arg::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        storage_type: &str,
        #[pyo3(from_py_with = arg::producer_model)] producer_model: Option<String>,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(DType::F32), arrays::dtype)?;
        let shape = arrays::shape(shape)?;
        let producer = producer_model.unwrap_or_else(|| program(py));
        let memory = Arc::new(EmbeddedMemory::default());
        let made = cotensor_sharing::SharedTensor::exposing(memory, &name, &shape, dtype, storage_type, &producer);
        made.or_raise(py).map(Self::over)
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.tensor.name()
    }

    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// The element type's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype().name()
    }

    /// Bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.size_bytes()
    }

    /// What it means, such as ``text_embedding``.
    #[getter]
    fn kind(&self) -> &'static str {
        self.tensor.kind().name()
    }

    /// The model that made it.
    #[getter]
    fn producer_model(&self) -> &str {
        self.tensor.producer_model()
    }

    /// Where it lies: ``cpu``.
    #[getter]
    fn storage_type(&self) -> String {
        self.tensor.storage_type().to_string()
    }

    /// Models and their acquires. Views and arrays are not among them.
    #[getter]
    fn holders(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u32>> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.holders()))
    }

    /// Whether another model has seen it, so that it can no longer be written.
    #[getter]
    fn published(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.is_published()))
    }

    /// Whether its memory was given back.
    #[getter]
    fn freed(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.is_freed()))
    }

    /// Whether the store's configuration keeps it to its producer.
    #[getter]
    fn private(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tensor(py)?.is_private())
    }

    /// Acquires it once more for a model. The first acquire by another than the producer publishes it.
    ///
    /// Raises :class:`NotFoundError` once it was freed, :class:`RefusedError` where the configuration keeps it private.
    fn acquire(&self, py: Python<'_>, #[pyo3(from_py_with = arg::model_name)] model_name: String) -> PyResult<()> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.acquire(&model_name)).or_raise(py)
    }

    /// Gives one of the model's acquires back. Raises :class:`ConflictError` when it has none.
    fn release(&self, py: Python<'_>, #[pyo3(from_py_with = arg::model_name)] model_name: String) -> PyResult<()> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.release(&model_name)).or_raise(py)
    }

    /// All acquires that were not released.
    #[pyo3(name = "get_reference_count")]
    fn reference_count(&self, py: Python<'_>) -> PyResult<u32> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.get_reference_count()))
    }

    /// The same.
    #[pyo3(name = "getReferenceCount")]
    fn reference_count_of_js(&self, py: Python<'_>) -> PyResult<u32> {
        self.reference_count(py)
    }

    /// A window on it, without a copy: ``size`` elements from ``offset`` on, along each dimension.
    ///
    /// Raises :class:`InvalidError` when it is out of bounds, :class:`NotFoundError` once the tensor was freed.
    fn create_view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::name)] name: String,
        #[pyo3(from_py_with = arg::offsets)] offset: Vec<usize>,
        #[pyo3(from_py_with = arg::size)] size: Vec<usize>,
    ) -> PyResult<SharedTensorView> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.create_view(&name, &offset, &size)).or_raise(py).map(SharedTensorView::new)
    }

    /// Copies an array of the same dtype and shape into it; counted. Raises :class:`ConflictError` once it is published.
    fn write(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tensor, source) = (self.tensor(py)?, Source::of(array, &"array")?);
        source.fits(tensor.name(), tensor.dtype(), tensor.shape()).or_raise(py)?;
        py.detach(|| tensor.write(|bytes| source.copy_to(bytes))).or_raise(py)?;
        tensor.store().record_copy(tensor.name(), CopyReason::Put, source.len_bytes());
        Ok(())
    }

    /// A numpy array on the memory: for writing until it is published, read-only from then on.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(py)?.call_method0("numpy")
    }

    /// A torch tensor on the memory. Once published, what is written in place is the writer's own.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(py)?.call_method0("torch")
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        as_array(&self.numpy(py)?, dtype, copy)
    }

    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(&self, py: Python<'py>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(py)?.call_method("__dlpack__", (), options)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (crate::dlpack::CPU, 0)
    }

    /// Whether to tell :mod:`logging`, under the name ``cotensor`` at level INFO, what happens to tensors, in the whole process:
    /// register, acquire, publish, release, view, evict, free. Off at first. What was said before is told when it returns.
    #[staticmethod]
    #[pyo3(signature = (verbose=true))]
    fn set_verbose_logging(py: Python<'_>, #[pyo3(from_py_with = arg::verbose)] verbose: bool) {
        log::set_verbose(py, verbose);
    }

    /// The same.
    #[staticmethod]
    #[pyo3(name = "setVerboseLogging", signature = (verbose=true))]
    fn set_verbose_logging_of_js(py: Python<'_>, #[pyo3(from_py_with = arg::verbose)] verbose: bool) {
        log::set_verbose(py, verbose);
    }

    /// Every live shared tensor of this process, with holders, bytes, device, age and hits; and every copy with its reason, in
    /// the stores that they lie in.
    #[staticmethod]
    fn get_diagnostics(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        report(py, || serde_json::to_string(&cotensor_sharing::SharedTensor::get_diagnostics()))
    }

    /// The same.
    #[staticmethod]
    #[pyo3(name = "getDiagnostics")]
    fn get_diagnostics_of_js(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Self::get_diagnostics(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Ok(tensor) = self.tensor(py) else { return Ok("<SharedTensor of the parent process>".to_owned()) };
        let (name, dtype, shape, bytes) = (tensor.name(), tensor.dtype(), tensor.shape(), tensor.size_bytes());
        let (holders, published, device) =
            (py.detach(|| tensor.holders()), tensor.is_published(), tensor.storage_type());
        let held = holders.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ");
        let state = if published { "published" } else { "being written" };
        Ok(format!("<SharedTensor {name:?}, {dtype}{shape:?}, {bytes} bytes, {device}, {state}, held by {{{held}}}>"))
    }
}
