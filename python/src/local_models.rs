//! Models in this process, for programs that have no daemon.

use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::{run_interruptible_within, seconds};
use crate::process::ProcessLocal;
use crate::settings::{configured, configured_number, configured_time};
use crate::sharing::runtime_over;
use crate::store::store::Store;
use cotensor::Error;
use cotensor::model::pipeline::{EmbedderInput, read_options};
use cotensor::serving::{EmbedOptions, LoadedModels, ServingOptions};
use cotensor_client::settings::{ENGINE, MODEL_TTL, THREADS};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Arc;

/// The models that this process has loaded, as the daemon's model process loads them: with the same settings, each at its first
/// call, and until it had no call for a time. Their weights are in a store of this process. The settings are those of the
/// variables and of the configuration file.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct LocalModels {
    models: ProcessLocal<Arc<LoadedModels>>,
    store: Py<Store>,
}

#[pymethods]
impl LocalModels {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let engine = configured(py, &ENGINE)?.map(|name| name.to_string_lossy().into_owned());
        let threads = configured_number(py, &THREADS)?;
        if threads == Some(0) {
            return Err(raise(py, &Error::invalid("at least one thread runs a model").in_field(THREADS.variable)));
        }
        let mut options = ServingOptions { caches_results: false, ..ServingOptions::default() };
        if let Some(ttl) = configured_time(py, &MODEL_TTL)? {
            options.model_ttl = Some(ttl).filter(|ttl| !ttl.is_zero());
        }
        let store = Py::new(py, Store::in_process_with_cache(py)?)?;
        let runtime = runtime_over(py, store.get(), threads, engine.as_deref())?;
        runtime.limit_to_free_memory();
        let models = LoadedModels::new(runtime, options).or_raise(py)?;
        Ok(Self { models: ProcessLocal::new(models), store })
    }

    /// The store of the weights.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }

    /// The embeddings of texts, as the function ``model.embed`` has them: a row of float32 for each text as bytes, the number of
    /// float32 in a row, the tokens of each text, the positions of the texts that were cut, and notices. ``model`` is a folder's
    /// absolute path, or a name on the hub. ``options`` are the other arguments of ``model.embed``. Waits at most ``timeout``
    /// seconds.
    #[pyo3(signature = (model, texts, options, timeout=None))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::model)] model: String,
        #[pyo3(from_py_with = args::texts)] texts: Vec<String>,
        options: &Bound<'py, PyDict>,
        #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>,
    ) -> PyResult<Local<'py>> {
        let models = Arc::clone(self.models.get(py, "table of models")?);
        let timeout = seconds(py, timeout)?;
        let texts = texts.into_iter().map(EmbedderInput::Text).collect();
        let options: EmbedOptions = read_options(&args::options(options)?).or_raise(py)?;
        let embed = move |_: &dyn Fn() -> bool| {
            models.embed_now(&model, texts, &options).map_err(|error| error.in_list("texts", options.first_index))
        };
        let embedded = run_interruptible_within(py, "cotensor-embed", timeout, embed)?.or_raise(py)?;
        let truncated = embedded.truncated().collect();
        let embeddings = embedded.embeddings;
        let width = embeddings.first().map_or(0, |embedding| embedding.values.len());
        let values = embeddings.iter().flat_map(|embedding| &embedding.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_ne_bytes()).collect();
        let tokens = embeddings.iter().map(|embedding| embedding.tokens).collect();
        Ok((PyBytes::new(py, &bytes), width, tokens, truncated, embedded.notices))
    }
}

/// Rows, width, tokens, positions of texts that were cut, notices.
type Local<'py> = (Bound<'py, PyBytes>, usize, Vec<usize>, Vec<usize>, Vec<String>);
