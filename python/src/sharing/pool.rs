//! Models of a folder, each loaded once.

use super::manager::TensorSharingManager;
use super::ours;
use crate::arg;
use crate::errors::{OrRaise, raise};
use crate::interrupt::patiently;
use crate::process::Own;
use crate::store::{Store, report};
use crate::tensor::Tensor;
use cotensor::model::family::tasks;
use cotensor::{Error, ErrorKind, HardwarePreferences, Inputs, Runtime, User};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;
use std::sync::Arc;

/// Models below one folder, for many callers: each is loaded once, and at most ``max_connections`` calls run at a time.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct ResourcePool {
    pool: Own<cotensor::ResourcePool>,
    store: Py<Store>,
}

#[pymethods]
impl ResourcePool {
    #[new]
    #[pyo3(signature = (models, max_connections=4, store=None, threads=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arg::models)] models: PathBuf,
        #[pyo3(from_py_with = arg::max_connections)] max_connections: usize,
        #[pyo3(from_py_with = arg::store)] store: Option<Py<Store>>,
        #[pyo3(from_py_with = arg::threads)] threads: Option<usize>,
    ) -> PyResult<Self> {
        let store = store.map_or_else(|| Py::new(py, Store::in_process()), Ok)?;
        let runtime = Runtime::over(store.get().store(py)?, threads);
        let pool = cotensor::ResourcePool::new(runtime, models, max_connections).or_raise(py)?;
        Ok(Self { pool: Own::new(pool), store })
    }

    /// The store that weights and results lie in.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }

    /// A manager of the tensors in the pool's store, which it limits to ``max_memory_mb`` MiB, weights included.
    #[pyo3(signature = (max_memory_mb=None))]
    fn setup_tensor_sharing(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::max_memory_mb)] max_memory_mb: Option<u64>,
    ) -> PyResult<TensorSharingManager> {
        ours(py, "pool", &self.pool)?;
        TensorSharingManager::over(py, self.store.clone_ref(py), max_memory_mb)
    }

    /// The model ``model_name``, a folder below the pool's, on the first device of ``priority_list`` that can be used.
    /// ``model_type`` is a kind (``text_embedding``), a modality (``text``) or a family (``bert``); the model has to be of it.
    #[pyo3(signature = (model_type, model_name, priority_list=None))]
    fn get_model(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::model_type)] model_type: String,
        #[pyo3(from_py_with = arg::model_name)] model_name: String,
        #[pyo3(from_py_with = arg::priority_list)] priority_list: Option<Vec<String>>,
    ) -> PyResult<PooledModel> {
        let pool = ours(py, "pool", &self.pool)?;
        let preferences = priority_list
            .map_or_else(HardwarePreferences::default, |priority_list| HardwarePreferences { priority_list });
        let model = py.detach(|| pool.get_model(&model_type, &model_name, &preferences)).or_raise(py)?;
        Ok(PooledModel { model: Own::new(model), store: Own::new(Arc::clone(pool.runtime().store())) })
    }
}

/// A model of a pool.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct PooledModel {
    model: Own<cotensor::model::pool::PooledModel>,
    store: Own<Arc<dyn cotensor::Store>>,
}

#[pymethods]
impl PooledModel {
    /// The folder's name.
    #[getter]
    fn name(&self) -> String {
        self.model.model().name()
    }

    /// The family: ``bert``, ``vit``, ….
    #[getter]
    fn family(&self) -> &str {
        &self.model.model().family().name
    }

    /// Where it runs.
    #[getter]
    fn device(&self) -> String {
        self.model.device().device.to_string()
    }

    /// The preferred devices that were passed over, each with the reason.
    #[getter]
    fn skipped(&self) -> Vec<(String, String)> {
        self.model.device().skipped.clone()
    }

    /// What it can be asked for, and whether that needs a head graph.
    #[getter]
    fn tasks(&self) -> Vec<(String, bool)> {
        let family = &self.model.model().family().name;
        let own = tasks().iter().filter(|task| task.family.contains(family));
        own.map(|task| (task.name.clone(), task.head)).collect()
    }

    /// Whether both are one loaded copy.
    fn is_same_copy(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.model.model(), other.model.model())
    }

    /// Runs a task for ``user``; waits while as many calls run as the pool allows. ``image`` and ``audio`` are files: their
    /// paths or their bytes.
    #[pyo3(signature = (task, *, user, text=None, image=None, audio=None, texts=None, head=None, max_new_tokens=None, min_new_tokens=None))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arg::task)] task: String,
        #[pyo3(from_py_with = arg::user)] user: String,
        #[pyo3(from_py_with = arg::text)] text: Option<String>,
        image: Option<&Bound<'py, PyAny>>,
        audio: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = arg::texts)] texts: Option<Vec<String>>,
        #[pyo3(from_py_with = arg::head)] head: Option<String>,
        #[pyo3(from_py_with = arg::max_new_tokens)] max_new_tokens: Option<usize>,
        #[pyo3(from_py_with = arg::min_new_tokens)] min_new_tokens: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let model = ours(py, "model", &self.model)?;
        let (image, audio) = (image.map(File::of).transpose()?, audio.map(File::of).transpose()?);
        let texts = texts.unwrap_or_default();
        let user = User { name: user, model: self.name(), task, head, texts, max_new_tokens, min_new_tokens };
        // With connections to wait for, and others who may compute what is asked for.
        let model = model.clone();
        let ran = patiently(py, "cotensor-model", move |wanted| {
            let mut inputs = Inputs::default();
            if let Some(text) = text {
                inputs = inputs.with_text(text);
            }
            inputs = match image {
                None => inputs,
                Some(File::At(path)) => inputs.with_image(&path)?,
                Some(File::Bytes(bytes)) => inputs.with_image_bytes(bytes)?,
            };
            inputs = match audio {
                None => inputs,
                Some(File::At(path)) => inputs.with_audio(&path)?,
                Some(File::Bytes(bytes)) => inputs.with_audio_bytes(bytes)?,
            };
            model.run_while(&user, &inputs, wanted)
        })?;
        let given_up = || Error::new(ErrorKind::Conflict, "the wait for a connection was given up");
        let ran = ran.and_then(|ran| ran.ok_or_else(given_up)).or_raise(py)?;
        let result = report(py, || serde_json::to_string(&ran.report))?;
        let tensors = PyDict::new(py);
        for (kind, lease) in ran.output_tensors {
            tensors.set_item(kind, Tensor::new(lease, Arc::clone(&self.store)))?;
        }
        result.set_item("output_tensors", tensors)?;
        Ok(result)
    }
}

/// A file that somebody brings.
enum File {
    At(PathBuf),
    Bytes(Vec<u8>),
}

impl File {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.as_bytes().to_vec()));
        }
        given.extract().map(Self::At).map_err(|_| {
            let message = "the path of a file is expected, or its bytes";
            raise(given.py(), &Error::invalid(message))
        })
    }
}
