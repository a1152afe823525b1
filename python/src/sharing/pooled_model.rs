//! A model of a resource pool.

use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::run_interruptible;
use crate::process::ProcessLocal;
use crate::store::report::report;
use crate::store::tensor::Tensor;
use cotensor::core::sync::lock;
use cotensor::model::family::tasks;
use cotensor::{Error, ErrorKind, Inputs, User};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A model of a :class:`ResourcePool`.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct PooledModel {
    model: ProcessLocal<cotensor::model::pool::PooledModel>,
    store: ProcessLocal<Arc<dyn cotensor::Store>>,
}

impl PooledModel {
    pub(super) fn new(model: cotensor::model::pool::PooledModel, store: Arc<dyn cotensor::Store>) -> Self {
        Self { model: ProcessLocal::new(model), store: ProcessLocal::new(store) }
    }
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

    /// The device that it runs on.
    #[getter]
    fn device(&self) -> String {
        self.model.device().device.to_string()
    }

    /// The preferred devices that are not available, each with the reason.
    #[getter]
    fn skipped(&self) -> Vec<(String, String)> {
        self.model.device().skipped.clone()
    }

    /// The tasks of its family, and whether each needs a head graph.
    #[getter]
    fn tasks(&self) -> Vec<(String, bool)> {
        let family = &self.model.model().family().name;
        let own = tasks().iter().filter(|task| task.family.contains(family));
        own.map(|task| (task.name.clone(), task.head)).collect()
    }

    /// Whether both objects use one loaded copy.
    fn is_same_copy(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.model.model(), other.model.model())
    }

    /// Runs a task for ``user``. Waits while ``max_connections`` calls of the pool run. ``image`` and ``audio`` are the
    /// paths or the bytes of files. ``on_text`` is called with each piece of a text while it is decoded; an exception stops the
    /// decoding.
    #[pyo3(signature = (task, *, user, text=None, image=None, audio=None, texts=None, head=None, prompt_name=None, max_new_tokens=None, min_new_tokens=None, threshold=None, do_sample=None, temperature=None, top_k=None, top_p=None, seed=None, on_text=None))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::task)] task: String,
        #[pyo3(from_py_with = args::user)] user: String,
        #[pyo3(from_py_with = args::text)] text: Option<String>,
        image: Option<&Bound<'py, PyAny>>,
        audio: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = args::texts)] texts: Option<Vec<String>>,
        #[pyo3(from_py_with = args::head)] head: Option<String>,
        #[pyo3(from_py_with = args::prompt_name)] prompt_name: Option<String>,
        #[pyo3(from_py_with = args::max_new_tokens)] max_new_tokens: Option<usize>,
        #[pyo3(from_py_with = args::min_new_tokens)] min_new_tokens: Option<usize>,
        #[pyo3(from_py_with = args::threshold)] threshold: Option<f32>,
        #[pyo3(from_py_with = args::do_sample)] do_sample: Option<bool>,
        #[pyo3(from_py_with = args::temperature)] temperature: Option<f32>,
        #[pyo3(from_py_with = args::top_k)] top_k: Option<usize>,
        #[pyo3(from_py_with = args::top_p)] top_p: Option<f32>,
        #[pyo3(from_py_with = args::seed)] seed: Option<u64>,
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let model = self.model.get(py, "model")?;
        let (image, audio) = (image.map(File::of).transpose()?, audio.map(File::of).transpose()?);
        let texts = texts.unwrap_or_default();
        let user = User {
            name: user,
            model: self.name(),
            task,
            encoder: None,
            head,
            texts,
            prompt_name,
            max_new_tokens,
            min_new_tokens,
            threshold,
            do_sample,
            temperature,
            top_k,
            top_p,
            seed,
        };
        let raised = Arc::new(Mutex::new(None));
        let in_callback = Arc::clone(&raised);
        // The run can wait for a connection of the pool, or for another caller that computes the same result.
        let model = model.clone();
        let ran = run_interruptible(py, "cotensor-model", move |is_wanted| {
            let mut inputs = Inputs::default();
            if let Some(text) = text {
                inputs = inputs.with_text(text);
            }
            inputs = match image {
                None => inputs,
                Some(File::Path(path)) => inputs.with_image(&path)?,
                Some(File::Bytes(bytes)) => inputs.with_image_bytes(bytes)?,
            };
            inputs = match audio {
                None => inputs,
                Some(File::Path(path)) => inputs.with_audio(&path)?,
                Some(File::Bytes(bytes)) => inputs.with_audio_bytes(bytes)?,
            };
            let mut on_text = |piece: &str| {
                let Some(on_text) = &on_text else { return Ok(()) };
                // An interrupted caller does not read the text.
                if !is_wanted() {
                    return Err(Error::new(ErrorKind::Conflict, "the decoding was interrupted"));
                }
                Python::attach(|py| on_text.call1(py, (piece,))).map(drop).map_err(|error| {
                    *lock(&in_callback) = Some(error);
                    Error::new(ErrorKind::Conflict, "on_text raised an exception")
                })
            };
            model.run_streaming_while(&user, &inputs, is_wanted, &mut on_text)
        })?;
        if let Some(error) = lock(&raised).take() {
            return Err(error);
        }
        let interrupted = || Error::new(ErrorKind::Conflict, "the wait for a connection was interrupted");
        let ran = ran.and_then(|ran| ran.ok_or_else(interrupted)).or_raise(py)?;
        let result = report(py, || serde_json::to_string(&ran.report))?;
        let tensors = PyDict::new(py);
        for (kind, lease) in ran.output_tensors {
            tensors.set_item(kind, Tensor::new(lease, Arc::clone(&self.store)))?;
        }
        result.set_item("output_tensors", tensors)?;
        Ok(result)
    }
}

/// A file argument.
enum File {
    Path(PathBuf),
    Bytes(Vec<u8>),
}

impl File {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.as_bytes().to_vec()));
        }
        given.extract().map(Self::Path).map_err(|_| {
            let message = "pass the path of a file, or its bytes";
            raise(given.py(), &Error::invalid(message))
        })
    }
}
