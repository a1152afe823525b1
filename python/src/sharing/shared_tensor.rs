//! A tensor that models acquire and release.

use super::expose::Elements;
use super::log;
use super::view::SharedTensorView;
use crate::args;
use crate::dlpack::abi::HOST;
use crate::errors::OrRaise;
use crate::export::buffer::DlpackRequest;
use crate::export::dtype::dtype_object;
use crate::export::numpy::as_array;
use crate::export::operators;
use crate::import::dtype;
use crate::import::source::SourceArray;
use crate::process::ProcessLocal;
use crate::store::holder::program;
use crate::store::report::report;
use cotensor::DType;
use cotensor::model::pipeline::SharedEmbedding;
use cotensor_memory::LocalMemory;
use cotensor_store::CopyReason;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor that models acquire and release by name, with a count for each model.
///
/// The producer holds it once from registration and writes it (``numpy()``, ``torch()``, ``write()``) until another
/// model first acquires it. That acquire publishes it: the tensor becomes immutable, and later writes through the
/// producer's earlier arrays are private to the producer. Two acquires by one model need two releases. The memory is
/// freed when no model holds the tensor and no view or array of it is left.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct SharedTensor {
    tensor: ProcessLocal<cotensor_sharing::SharedTensor>,
    /// What a model knows about a tensor that it made.
    embedding: Option<ProcessLocal<SharedEmbedding>>,
}

operators::array_operators!(SharedTensor, contains = operators::contains);

impl SharedTensor {
    pub(super) fn over(tensor: cotensor_sharing::SharedTensor) -> Self {
        Self { tensor: ProcessLocal::new(tensor), embedding: None }
    }

    pub(super) fn of_embedding(embedding: SharedEmbedding) -> Self {
        let tensor = ProcessLocal::new(embedding.tensor().clone());
        Self { tensor, embedding: Some(ProcessLocal::new(embedding)) }
    }

    /// The tensor as an input of a model.
    pub(super) fn embedding(&self, py: Python<'_>) -> PyResult<SharedEmbedding> {
        match &self.embedding {
            Some(embedding) => embedding.get(py, "tensor").cloned(),
            None => Ok(self.tensor(py)?.clone().into()),
        }
    }

    pub(super) fn tensor(&self, py: Python<'_>) -> PyResult<&cotensor_sharing::SharedTensor> {
        self.tensor.get(py, "tensor")
    }

    fn elements(&self, py: Python<'_>) -> PyResult<Elements> {
        let tensor = self.tensor(py)?;
        let origin = vec![0; tensor.shape().len()];
        let view = py.detach(|| tensor.create_view("array", &origin, tensor.shape())).or_raise(py)?;
        Elements::of(py, &Arc::new(ProcessLocal::new(view)), true)
    }
}

#[pymethods]
impl SharedTensor {
    /// A zeroed tensor outside of any manager. ``shape`` is in elements. ``storage_type`` is ``"cpu"``. ``"webgpu"`` and
    /// ``"webnn"`` are on the cpu too, see :attr:`skipped`; others raise :class:`UnsupportedError`. ``producer_model`` is this
    /// program's name by default.
    #[new]
    #[pyo3(signature = (name, shape, dtype=None, storage_type="cpu", producer_model=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        storage_type: &str,
        #[pyo3(from_py_with = args::producer_model)] producer_model: Option<String>,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(DType::F32), dtype::dtype)?;
        let shape = dtype::shape(shape)?;
        let producer = producer_model.unwrap_or_else(|| program(py));
        let memory = Arc::new(LocalMemory::default());
        let made = cotensor_sharing::SharedTensor::aliased(memory, &name, &shape, dtype, storage_type, &producer);
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

    /// The shape, under the name in docs/reference/api-names.md.
    #[getter]
    fn dimensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.shape(py)
    }

    /// This object: programs of the API read ``shared_tensor.tensor.dimensions``.
    #[getter(tensor)]
    fn itself(own: PyRef<'_, Self>) -> PyRef<'_, Self> {
        own
    }

    /// The fingerprint of the encoder that made it: graph, weights and preprocessing. ``None`` for a tensor of a program.
    #[getter]
    fn space(&self) -> Option<String> {
        self.tensor.space().map(|space| space.to_string())
    }

    /// The element type's name.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.tensor.dtype())
    }

    /// Size of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.size_bytes()
    }

    /// The kind of tensor, such as ``text_embedding``.
    #[getter]
    fn kind(&self) -> &'static str {
        self.tensor.kind().name()
    }

    /// The producer's name.
    #[getter]
    fn producer_model(&self) -> &str {
        self.tensor.producer_model()
    }

    /// The device: ``cpu``.
    #[getter]
    fn storage_type(&self) -> String {
        self.tensor.storage_type().to_string()
    }

    /// The device that was asked for, if the tensor is not there, with the reason: ``{"webgpu": "only available in a
    /// browser"}``. Else empty.
    #[getter]
    fn skipped(&self) -> BTreeMap<String, &'static str> {
        self.tensor.skipped().map(|(device, reason)| (device.to_string(), reason)).into_iter().collect()
    }

    /// The models that hold it, and the acquires of each. Views and arrays are not included.
    #[getter]
    fn holders(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u32>> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.holders()))
    }

    /// Whether it is published, and so immutable.
    #[getter]
    fn published(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.is_published()))
    }

    /// Whether its memory was freed.
    #[getter]
    fn freed(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.is_freed()))
    }

    /// Whether the store's configuration restricts it to its producer.
    #[getter]
    fn private(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tensor(py)?.is_private())
    }

    /// Acquires it once more for a model. The first acquire by a model other than the producer publishes it.
    ///
    /// Raises :class:`NotFoundError` if it was freed, :class:`RefusedError` if the configuration keeps it private.
    fn acquire(&self, py: Python<'_>, #[pyo3(from_py_with = args::model_name)] model_name: String) -> PyResult<()> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.acquire(&model_name)).or_raise(py)
    }

    /// Releases one of the model's acquires. Raises :class:`ConflictError` if the model has none.
    fn release(&self, py: Python<'_>, #[pyo3(from_py_with = args::model_name)] model_name: String) -> PyResult<()> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.release(&model_name)).or_raise(py)
    }

    /// The number of acquires of all models.
    #[pyo3(name = "get_reference_count")]
    fn reference_count(&self, py: Python<'_>) -> PyResult<u32> {
        let tensor = self.tensor(py)?;
        Ok(py.detach(|| tensor.get_reference_count()))
    }

    /// An alias of :meth:`get_reference_count`.
    #[pyo3(name = "getReferenceCount")]
    fn reference_count_of_js(&self, py: Python<'_>) -> PyResult<u32> {
        self.reference_count(py)
    }

    /// A view without a copy: ``size`` elements from ``offset`` along each dimension.
    ///
    /// Raises :class:`InvalidError` out of bounds, :class:`NotFoundError` if the tensor was freed.
    fn create_view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::offsets)] offset: Vec<usize>,
        #[pyo3(from_py_with = args::size)] size: Vec<usize>,
    ) -> PyResult<SharedTensorView> {
        let tensor = self.tensor(py)?;
        py.detach(|| tensor.create_view(&name, &offset, &size)).or_raise(py).map(SharedTensorView::new)
    }

    /// Copies an array of the same dtype and shape into it. The copy is counted. Raises :class:`ConflictError` after
    /// publishing.
    fn write(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tensor, source) = (self.tensor(py)?, SourceArray::of(array, &"array")?);
        source.fits(tensor.name(), tensor.dtype(), tensor.shape()).or_raise(py)?;
        py.detach(|| tensor.write(|bytes| source.copy_to(bytes))).or_raise(py)?;
        tensor.store().record_copy(tensor.name(), CopyReason::Put, source.len_bytes());
        Ok(())
    }

    /// A numpy array on the memory, without a copy: writable until the tensor is published, read-only afterwards.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.elements(py)?.numpy(py)
    }

    /// A torch tensor on the memory, without a copy. After publishing, writes in place are private to this process.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.elements(py)?.torch(py)
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

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let request = DlpackRequest::new(stream, max_version, dl_device, copy)?;
        self.elements(py)?.dlpack(py, &request)
    }

    /// Programs test whether they were given one: it is true, also where its elements are zero.
    fn __bool__(&self) -> bool {
        true
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        HOST
    }

    /// Turns verbose logging of this process on or off; it is off by default. Events of tensors (register, acquire,
    /// publish, release, view, evict, free) go to the logger ``cotensor`` of :mod:`logging`, at level INFO. Returns
    /// after all earlier events are logged.
    #[staticmethod]
    #[pyo3(signature = (verbose=true))]
    fn set_verbose_logging(py: Python<'_>, #[pyo3(from_py_with = args::verbose)] verbose: bool) {
        log::set_verbose(py, verbose);
    }

    /// An alias of :meth:`set_verbose_logging`.
    #[staticmethod]
    #[pyo3(name = "setVerboseLogging", signature = (verbose=true))]
    fn set_verbose_logging_of_js(py: Python<'_>, #[pyo3(from_py_with = args::verbose)] verbose: bool) {
        log::set_verbose(py, verbose);
    }

    /// Every live shared tensor of this process, with its holders, bytes, device, age and hits; and the copies by
    /// reason in the stores of these tensors.
    #[staticmethod]
    fn get_diagnostics(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        report(py, || serde_json::to_string(&cotensor_sharing::SharedTensor::get_diagnostics()))
    }

    /// An alias of :meth:`get_diagnostics`.
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
        let state = if published { "published" } else { "unpublished" };
        Ok(format!("<SharedTensor {name:?}, {dtype}{shape:?}, {bytes} bytes, {device}, {state}, held by {{{held}}}>"))
    }
}
