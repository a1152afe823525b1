//! The models of a folder, each loaded once.

use super::manager::TensorSharingManager;
use super::pooled_model::PooledModel;
use crate::args;
use crate::errors::OrRaise;
use crate::interrupt::{run_interruptible, run_while_wanted};
use crate::process::ProcessLocal;
use crate::settings::configured;
use crate::settings::user_cache;
use crate::store::report::report;
use crate::store::store::Store;
use cotensor::memory::PackCache;
use cotensor::model::engine::EngineOptions;
use cotensor::model::quantize::QuantizeReport;
use cotensor::{HardwarePreferences, Quantizing, Runtime, Samples, UltraLowPrecisionOptions};
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
    pool: ProcessLocal<Arc<cotensor::ResourcePool>>,
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
        Ok(Self { pool: ProcessLocal::new(Arc::new(pool)), store })
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
    /// match. ``precision`` is a variant of its graphs (``fp16``) or the variant's number of bits; without such a variant, weights
    /// of 2, 3, 4 or 8 bits. ``calibration`` is a list of texts, or the path of samples. After an interrupt, and when ``is_wanted``
    /// gives False, the work goes on in a thread. ``folder`` is where the files are, if not where ``model_name`` says.
    #[pyo3(signature = (model_type, model_name, priority_list=None, precision=None, mixed_precision=false, calibration=None, is_wanted=None, folder=None))]
    #[expect(clippy::too_many_arguments, reason = "preferences by name")]
    fn get_model(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::model_type)] model_type: String,
        #[pyo3(from_py_with = args::model_name)] model_name: String,
        #[pyo3(from_py_with = args::priority_list)] priority_list: Option<Vec<String>>,
        #[pyo3(from_py_with = args::precision)] precision: Option<String>,
        #[pyo3(from_py_with = args::mixed_precision)] mixed_precision: bool,
        calibration: Option<&Bound<'_, PyAny>>,
        is_wanted: Option<&Bound<'_, PyAny>>,
        folder: Option<PathBuf>,
    ) -> PyResult<PooledModel> {
        let pool = Arc::clone(self.pool.get(py, "pool")?);
        let store = Arc::clone(pool.runtime().store());
        let calibration = calibration.map(samples).transpose()?;
        let copies = if precision.is_some() { self.copies(py)? } else { None };
        let mut preferences =
            HardwarePreferences { precision, mixed_precision, calibration, folder, ..HardwarePreferences::default() };
        if let Some(priority_list) = priority_list {
            preferences.priority_list = priority_list;
        }
        let load = move |_: &dyn Fn() -> bool| {
            let quantizing =
                Quantizing { copies: copies.as_deref().map(|copies| copies as _), progress: &mut |_, _, _| {} };
            pool.get_model_with(&model_type, &model_name, &preferences, quantizing)
        };
        let found = run_while_wanted(py, "cotensor-model", is_wanted, load)?;
        Ok(PooledModel::new(found.or_raise(py)?, store))
    }

    /// Quantizes a model for :meth:`get_model` with the same precision: its folder, the report of the command ``quantize`` and the
    /// bits of a weight (None for a variant of another program), the most tokens of a text, and notices. ``progress`` is called with
    /// the step, the number of its finished parts, and the number of all. After an interrupt, the work goes on in a thread. ``folder`` is that
    /// of :meth:`get_model`.
    #[pyo3(signature = (model_name, model_type, *, precision_bits, mixed_precision, enable_kv_cache, extended_context, calibration=None, progress=None, folder=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn setup_ultra_low_precision<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::model_name)] model_name: String,
        #[pyo3(from_py_with = args::model_type)] model_type: String,
        #[pyo3(from_py_with = args::precision_bits)] precision_bits: u32,
        #[pyo3(from_py_with = args::mixed_precision)] mixed_precision: bool,
        #[pyo3(from_py_with = args::enable_kv_cache)] enable_kv_cache: bool,
        #[pyo3(from_py_with = args::extended_context)] extended_context: bool,
        calibration: Option<&Bound<'py, PyAny>>,
        progress: Option<Py<PyAny>>,
        folder: Option<PathBuf>,
    ) -> PyResult<Prepared<'py>> {
        let pool = Arc::clone(self.pool.get(py, "pool")?);
        let calibration = calibration.map(samples).transpose()?;
        let copies = self.copies(py)?;
        let options = UltraLowPrecisionOptions {
            precision_bits,
            mixed_precision,
            enable_kv_cache,
            extended_context,
            calibration,
            folder,
        };
        let setup = move |_: &dyn Fn() -> bool| {
            let mut raised = None;
            let mut told = |step: &str, done: usize, all: usize| {
                let Some(progress) = progress.as_ref().filter(|_| raised.is_none()) else { return };
                raised = Python::attach(|py| progress.call1(py, (step, done, all)).err());
            };
            let quantizing = Quantizing { copies: copies.as_deref().map(|copies| copies as _), progress: &mut told };
            let found = pool.setup_ultra_low_precision(&model_name, &model_type, &options, quantizing);
            (found, raised)
        };
        let (found, raised) = run_interruptible(py, "cotensor-quantize", setup)?;
        let found = found.or_raise(py)?;
        if let Some(raised) = raised {
            return Err(raised);
        }
        let measured =
            found.report.as_ref().map(|measured| report(py, || serde_json::to_string(measured))).transpose()?;
        let bits = found.report.as_ref().map(QuantizeReport::bits_per_weight);
        Ok((found.folder, measured, bits, found.context_tokens, found.notices))
    }
}

/// A folder, a report, bits of a weight, the most tokens of a text, and notices.
type Prepared<'py> = (PathBuf, Option<Bound<'py, PyAny>>, Option<f64>, Option<usize>, Vec<String>);

impl ResourcePool {
    /// The folder of copies with weights of few bits: that of the store, else the user's.
    ///
    /// # Errors
    /// As [`Store::cache`] and [`user_cache`].
    fn copies(&self, py: Python<'_>) -> PyResult<Option<Arc<PackCache>>> {
        self.store.get().cache(py)?.map_or_else(|| user_cache(py), |cache| Ok(Some(cache)))
    }
}

/// Texts, or the samples at a path.
///
/// # Errors
/// `Invalid` for something else; as [`Samples::open`].
fn samples(given: &Bound<'_, PyAny>) -> PyResult<Arc<Samples>> {
    const NAME: &str = "calibration";
    let py = given.py();
    let samples = match given.extract::<Vec<String>>() {
        Ok(texts) => Samples::of_texts(texts),
        Err(_) => {
            let path: PathBuf = args::calibration(given)?;
            py.detach(|| Samples::open(&path)).map_err(|error| error.in_field(NAME)).or_raise(py)?
        }
    };
    Ok(Arc::new(samples))
}
