//! A model of a resource pool.

use super::shared_tensor::SharedTensor;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::run_interruptible;
use crate::process::ProcessLocal;
use crate::store::report::report;
use crate::store::tensor::Tensor;
use cotensor::core::sync::lock;
use cotensor::model::family::tasks;
use cotensor::model::pipeline::SharedEmbedding;
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

    /// The model.
    ///
    /// # Errors
    /// As [`ProcessLocal::get`].
    pub(crate) fn shared(&self, py: Python<'_>) -> PyResult<&Arc<cotensor::model::model::Model>> {
        Ok(self.model.get(py, "model")?.model())
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

    /// What the command ``quantize`` reported of its weights; None for graphs that another program wrote.
    fn quantization<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let model = self.shared(py)?;
        let found = py.detach(|| model.quantization()).or_raise(py)?;
        found.map(|found| report(py, || serde_json::to_string(found))).transpose()
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

    /// Loads the graphs of the tasks that need no head graph. Otherwise each graph is loaded at its first use.
    fn initialize(&self, py: Python<'_>) -> PyResult<()> {
        let model = self.model.get(py, "model")?;
        py.detach(|| model.initialize()).or_raise(py)
    }

    /// The tokens of a text, as the model reads them: ids, mask and segments, each a list of one row.
    #[allow(clippy::type_complexity, reason = "three lists")]
    fn tokenize(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::text)] text: String,
    ) -> PyResult<(Vec<i64>, Vec<i64>, Vec<i64>)> {
        let model = self.model.get(py, "model")?;
        let tokens = py.detach(|| {
            let tokens = model.tokenize(&text)?;
            let row = |array: &cotensor::model::tensor::Array| Ok::<_, Error>(array.as_i64()?.to_vec());
            Ok::<_, Error>((row(&tokens.ids)?, row(&tokens.mask)?, row(&tokens.type_ids)?))
        });
        tokens.or_raise(py)
    }

    /// The tensor of this kind that the model made of its last input with ``keep=True``. The model holds it until the next such
    /// input. Raises :class:`NotFoundError` for another kind.
    fn get_shared_tensor(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::kind)] kind: String,
    ) -> PyResult<SharedTensor> {
        let model = self.model.get(py, "model")?;
        let kind = kind.parse().map_err(|error: Error| error.in_field("kind")).or_raise(py)?;
        py.detach(|| model.get_shared_tensor(kind)).or_raise(py).map(SharedTensor::of_embedding)
    }

    /// Acquires a tensor once more for the model.
    fn use_shared_tensor(&self, py: Python<'_>, tensor: &SharedTensor) -> PyResult<()> {
        let (model, tensor) = (self.model.get(py, "model")?, tensor.tensor(py)?);
        py.detach(|| model.use_shared_tensor(tensor)).or_raise(py)
    }

    /// Releases one acquire of the model. Raises :class:`ConflictError` if the model has none.
    fn release_shared_tensor(&self, py: Python<'_>, tensor: &SharedTensor) -> PyResult<()> {
        let (model, tensor) = (self.model.get(py, "model")?, tensor.tensor(py)?);
        py.detach(|| model.release_shared_tensor(tensor)).or_raise(py)
    }

    /// Releases every tensor that the model holds.
    fn dispose(&self, py: Python<'_>) -> PyResult<()> {
        let model = self.model.get(py, "model")?;
        py.detach(|| model.dispose());
        Ok(())
    }

    /// Runs a task for ``user``. Waits while ``max_connections`` calls of the pool run. ``given`` has the inputs and the options of
    /// the task by name. ``image`` and ``audio`` are the paths or the bytes of files; an image may be its pixels, too, with width
    /// and height: three or four bytes each, row by row. ``on_text`` is called with each piece of a text while it is decoded; an
    /// exception stops the decoding. Without ``task``, the task that reads exactly these inputs runs. ``shared_embeddings`` are
    /// tensors of other models in place of the outputs of this model's stages. With ``keep``, the model keeps the outputs of its
    /// stages, and holds them under its name in the pool.
    #[pyo3(signature = (given, *, user, shared_embeddings=None, keep=false))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        given: &Bound<'py, PyDict>,
        #[pyo3(from_py_with = args::user)] user: String,
        shared_embeddings: Option<Vec<Bound<'py, PyAny>>>,
        #[pyo3(from_py_with = args::keep)] keep: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let model = self.model.get(py, "model")?;
        let given = given.copy()?;
        let take = |name: &str| {
            let found = given.get_item(name)?;
            if found.is_some() {
                given.del_item(name)?;
            }
            Ok::<_, PyErr>(found.filter(|value| !value.is_none()))
        };
        let task: Option<String> = take("task")?.as_ref().map(args::task).transpose()?;
        let text: Option<String> = take("text")?.as_ref().map(args::text).transpose()?;
        let image = take("image")?.as_ref().map(Image::of).transpose()?;
        let audio = take("audio")?.as_ref().map(File::of).transpose()?;
        let on_text = take("on_text")?.map(Bound::unbind);
        let options = args::options(&given)?;
        if options.get("texts").and_then(serde_json::Value::as_array).is_some_and(Vec::is_empty) {
            return Err(raise(py, &Error::invalid("pass a text or more").in_field("texts")));
        }
        let embeddings: Vec<SharedEmbedding> =
            shared_embeddings.iter().flatten().map(embedding).collect::<PyResult<_>>()?;
        let mut user = User {
            name: user,
            model: self.name(),
            task: task.clone().unwrap_or_default(),
            ..User::with_options(&options).or_raise(py)?
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
                Some(Image::File(File::Path(path))) => inputs.with_image(&path)?,
                Some(Image::File(File::Bytes(bytes))) => inputs.with_image_bytes(bytes)?,
                Some(Image::Pixels(pixels, size)) => inputs.with_image_pixels(pixels, size),
            };
            inputs = match audio {
                None => inputs,
                Some(File::Path(path)) => inputs.with_audio(&path)?,
                Some(File::Bytes(bytes)) => inputs.with_audio_bytes(bytes)?,
            };
            let inputs = model.with_embeddings(&inputs, &embeddings)?;
            if task.is_none() {
                model.choose_task(&mut user, &inputs).map_err(|error| error.in_field("task"))?;
            }
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
            if keep {
                model.process_while(&user, &inputs, is_wanted, &mut on_text)
            } else {
                model.run_streaming_while(&user, &inputs, is_wanted, &mut on_text)
            }
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

/// A shared tensor, or a tensor of a store, as an input of a model.
fn embedding(tensor: &Bound<'_, PyAny>) -> PyResult<SharedEmbedding> {
    let py = tensor.py();
    if let Ok(shared) = tensor.cast::<SharedTensor>() {
        return shared.get().embedding(py);
    }
    let Ok(tensor) = tensor.cast::<Tensor>() else {
        let found = tensor.get_type().name()?;
        let message = format!("pass a SharedTensor or a Tensor, not {found}");
        return Err(raise(py, &Error::invalid(message).in_field("shared_embeddings")));
    };
    let (tensor, held) = (tensor.get(), tensor.get().held(py)?);
    let store = held.store().filter(|_| tensor.is_whole(&held)).cloned().ok_or_else(|| {
        raise(py, &Error::invalid("a part of a tensor is not an output of a model").in_field("shared_embeddings"))
    })?;
    let lease = held.lease().try_clone().or_raise(py)?;
    Ok(cotensor::SharedTensor::of_lease(store, lease).into())
}

/// An image argument.
enum Image {
    File(File),
    /// The pixels, and width and height.
    Pixels(Vec<u8>, (u32, u32)),
}

impl Image {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        match given.extract::<(Bound<'_, PyBytes>, u32, u32)>() {
            Ok((pixels, width, height)) => Ok(Self::Pixels(pixels.as_bytes().to_vec(), (width, height))),
            Err(_) => File::of(given).map(Self::File),
        }
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
