//! A store: inside this process, or the daemon's.

use crate::arg;
use crate::arrays;
use crate::claim::{Claimed, claim};
use crate::dlpack;
use crate::draft::{Draft, fill};
use crate::errors::{OrRaise, raise};
use crate::handle::{self, Reduced};
use crate::interrupt::seconds;
use crate::process::Own;
use crate::source::Source;
use crate::tensor::Tensor;
use cotensor::{EmbeddedStore, Error, ErrorKind, Kind, SharingConfig};
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_core::ContentHash;
use cotensor_memory::{EmbeddedMemory, PackCache};
use cotensor_store::{CopyReason, Diagnostics, Holder, Retention, TensorId, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where tensors are kept, found by name, and leased.
///
/// ``Store()`` is inside this process; ``cotensor.connect()`` gives the daemon's, which all processes of this user share. Both
/// have the same methods, which may be called from any thread.
///
/// In a forked child a store of the daemon connects again by itself; one inside the process says that it is its parent's.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

/// Locked for moments, with Python attached: whoever forks holds Python, and so finds it free.
struct Inner {
    /// Until it is closed.
    store: Option<Own<Opened>>,
}

#[derive(Clone)]
pub(crate) enum Opened {
    Embedded(Arc<EmbeddedStore>),
    Client(Arc<ClientStore>),
}

impl Opened {
    fn store(&self) -> Arc<dyn cotensor::Store> {
        match self {
            Opened::Embedded(store) => Arc::clone(store) as Arc<dyn cotensor::Store>,
            Opened::Client(store) => Arc::clone(store) as Arc<dyn cotensor::Store>,
        }
    }
}

impl Store {
    /// A store inside this process, without limits.
    pub(crate) fn in_process() -> Self {
        Self::over(Opened::Embedded(EmbeddedStore::builder().memory(Arc::new(EmbeddedMemory::default())).build()))
    }

    pub(crate) fn over(store: Opened) -> Self {
        Self { inner: Mutex::new(Inner { store: Some(Own::new(store)) }) }
    }

    fn opened(&self, py: Python<'_>) -> PyResult<Opened> {
        // Unlocked before an exception is made, which runs Python.
        self.reopened().or_raise(py)
    }

    fn reopened(&self) -> Result<Opened, Error> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::new(ErrorKind::Conflict, "this store is closed");
        let store = inner.store.as_mut().ok_or_else(closed)?;
        if !store.is_ours() {
            let again = match &**store {
                Opened::Embedded(_) => Err(Error::new(
                    ErrorKind::Conflict,
                    "this store is inside the process that this one was forked from: connect to a daemon to share \
                     tensors between processes, or make a store of this process's own",
                )),
                Opened::Client(parents) => ClientStore::connect(Some(parents.socket()), parents.client()),
            };
            *store = Own::new(Opened::Client(again?));
        }
        Ok((**store).clone())
    }

    /// The store itself.
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn cotensor::Store>> {
        Ok(self.opened(py)?.store())
    }

    /// The store as a client of the daemon.
    pub(crate) fn client_store(&self, py: Python<'_>) -> PyResult<Arc<ClientStore>> {
        match self.opened(py)? {
            Opened::Client(store) => Ok(store),
            Opened::Embedded(_) => {
                let message = "this store is inside the process: functions of others are reached by cotensor.connect()";
                Err(raise(py, &Error::unsupported(message)))
            }
        }
    }

    /// A report of the store. A daemon that is gone is an error.
    fn reported<'py, M: p::Method<Params = p::Empty, Result = p::Report>>(
        &self,
        py: Python<'py>,
        of: fn(&dyn cotensor::Store) -> serde_json::Result<serde_json::Value>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let store = self.opened(py)?;
        let made = py.detach(|| match &store {
            Opened::Client(store) => store.report::<M, serde_json::Value>(),
            Opened::Embedded(store) => of(&**store).map_err(|error| Error::corrupt(error.to_string())),
        });
        let made = made.or_raise(py)?;
        report(py, || serde_json::to_string(&made))
    }

    /// Raises when the daemon of this store is gone.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.opened(py)? {
            Opened::Client(store) => py.detach(|| store.ask::<p::Ping>(&p::Empty {})).or_raise(py).map(drop),
            Opened::Embedded(_) => Ok(()),
        }
    }

    fn spec(py: Python<'_>, name: &str, options: &Described) -> PyResult<TensorSpec> {
        let kind: Kind = options.kind.as_deref().unwrap_or("other").parse::<Kind>().or_raise(py)?;
        let recompute = Duration::try_from_secs_f64(options.recompute_seconds)
            .map_err(|_| raise(py, &Error::invalid("a number of seconds is expected").in_field("recompute_seconds")))?;
        let hash = |text| {
            let wrong = || Error::invalid("64 hexadecimal digits are expected").in_field("provenance");
            ContentHash::from_hex(text).ok_or_else(wrong)
        };
        let provenance = options.provenance.as_deref().map(hash).transpose().or_raise(py)?;
        Ok(TensorSpec {
            kind,
            producer: options.producer.clone().or_else(|| options.holder.clone()).unwrap_or_else(|| program(py)),
            retention: if options.keep { Retention::Cached { recompute } } else { Retention::WhileLeased },
            provenance,
            ..TensorSpec::new(name, cotensor::DType::U8, &[])
        })
    }
}

/// How a tensor is described when it is made.
struct Described {
    holder: Option<String>,
    kind: Option<String>,
    producer: Option<String>,
    keep: bool,
    recompute_seconds: f64,
    provenance: Option<String>,
}

#[pymethods]
impl Store {
    /// A store inside this process.
    ///
    /// ``max_memory_mb`` is the most that all its tensors may take together. ``cache`` is a folder in which weights are kept for
    /// other processes and later runs. ``allowed_types`` (kinds), ``max_shared_tensor_size`` (bytes) and
    /// ``enable_shared_tensors`` say what may be shared; what may not is refused.
    #[new]
    #[pyo3(signature = (*, max_memory_mb=None, cache=None, enable_shared_tensors=true, allowed_types=None, max_shared_tensor_size=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arg::max_memory_mb)] max_memory_mb: Option<u64>,
        #[pyo3(from_py_with = arg::cache)] cache: Option<PathBuf>,
        #[pyo3(from_py_with = arg::enable_shared_tensors)] enable_shared_tensors: bool,
        #[pyo3(from_py_with = arg::allowed_types)] allowed_types: Option<Vec<String>>,
        #[pyo3(from_py_with = arg::max_shared_tensor_size)] max_shared_tensor_size: Option<u64>,
    ) -> PyResult<Self> {
        let kinds =
            allowed_types.map(|kinds| kinds.iter().map(|kind| kind.parse::<Kind>()).collect::<Result<Vec<_>, _>>());
        let allowed_types = kinds.transpose().map_err(|error| error.in_field("allowed_types")).or_raise(py)?;
        let sharing = SharingConfig {
            enable_shared_tensors,
            allowed_types,
            max_shared_tensor_size_bytes: max_shared_tensor_size,
        };
        let mut builder = EmbeddedStore::builder().memory(Arc::new(EmbeddedMemory::default())).config(sharing);
        if let Some(mb) = max_memory_mb {
            builder = builder.max_memory_bytes(mb.saturating_mul(1 << 20));
        }
        if let Some(folder) = cache {
            builder = builder.cache(Arc::new(PackCache::open(&folder).or_raise(py)?));
        }
        Ok(Self::over(Opened::Embedded(builder.build())))
    }

    /// The daemon's store. ``socket`` is where the daemon listens (``COTENSOR_SOCKET``, else its usual place); ``client`` names
    /// this process for people. The daemon has to answer within ``timeout`` seconds (30 unless given).
    #[staticmethod]
    #[pyo3(signature = (socket=None, *, client=None, timeout=None))]
    fn connect(
        py: Python<'_>,
        #[pyo3(from_py_with = arg::socket)] socket: Option<PathBuf>,
        #[pyo3(from_py_with = arg::client)] client: Option<String>,
        #[pyo3(from_py_with = arg::timeout)] timeout: Option<f64>,
    ) -> PyResult<Self> {
        let timeout = seconds(py, timeout)?.unwrap_or(Duration::MAX);
        let client = client.unwrap_or_else(|| program(py));
        let socket =
            socket.or_else(|| std::env::var_os("COTENSOR_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from));
        let store = py.detach(|| ClientStore::connect_within(socket.as_deref(), &client, timeout)).or_raise(py)?;
        Ok(Self::over(Opened::Client(store)))
    }

    /// Where the daemon listens; ``None`` for a store inside this process.
    #[getter]
    fn socket(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(match self.opened(py)? {
            Opened::Client(store) => Some(store.socket().to_path_buf()),
            Opened::Embedded(_) => None,
        })
    }

    /// This process's name with the daemon; ``None`` for a store inside this process.
    #[getter]
    fn client(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(match self.opened(py)? {
            Opened::Client(store) => Some(store.client().to_owned()),
            Opened::Embedded(_) => None,
        })
    }

    /// Identity of the daemon; ``None`` for a store inside this process. Another daemon has another, the next one at the same
    /// socket included: handles of tensors are good with the daemon that they were made with.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(match self.opened(py)? {
            Opened::Client(store) => Some(store.epoch()),
            Opened::Embedded(_) => None,
        })
    }

    /// A handle, for other processes of this user: each that opens it connects by itself.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        match self.opened(py)? {
            Opened::Client(store) => handle::of_store(py, &store),
            Opened::Embedded(_) => {
                let message = "this store is inside the process: connect to a daemon, cotensor.connect(), to send it";
                Err(raise(py, &Error::unsupported(message)))
            }
        }
    }

    /// Leases the newest version of ``name``, for ``holder`` (this program, unless it says otherwise).
    #[pyo3(signature = (name, holder=None))]
    fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::name)] name: String,
        #[pyo3(from_py_with = arg::holder)] holder: Option<String>,
    ) -> PyResult<Tensor> {
        let store = self.store(py)?;
        let holder = holding(py, &store, holder.as_deref());
        let lease = py.detach(|| store.get(&name, &holder)).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// Leases exactly one version, by its ``id``.
    #[pyo3(signature = (id, holder=None))]
    fn lease(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::id)] id: (u64, u64),
        #[pyo3(from_py_with = arg::holder)] holder: Option<String>,
    ) -> PyResult<Tensor> {
        let store = self.store(py)?;
        let holder = holding(py, &store, holder.as_deref());
        let id = TensorId { slot: id.0, version: id.1 };
        let lease = py.detach(|| store.lease(id, &holder)).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// Publishes an array under ``name``: one copy, counted, whatever its strides. Published again, a name has a new version;
    /// whoever holds the one before keeps it.
    ///
    /// With ``keep`` it stays when nobody leases it, until memory is wanted or it is removed; what takes few
    /// ``recompute_seconds`` to make again goes first. Without, it goes with its last lease. ``from_device`` copies arrays of a
    /// device, which are refused otherwise.
    #[pyo3(signature = (name, array, *, holder=None, kind=None, producer=None, keep=true, recompute_seconds=0.0, provenance=None, from_device=false))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::name)] name: String,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arg::holder)] holder: Option<String>,
        #[pyo3(from_py_with = arg::kind)] kind: Option<String>,
        #[pyo3(from_py_with = arg::producer)] producer: Option<String>,
        #[pyo3(from_py_with = arg::keep)] keep: bool,
        #[pyo3(from_py_with = arg::recompute_seconds)] recompute_seconds: f64,
        #[pyo3(from_py_with = arg::provenance)] provenance: Option<String>,
        #[pyo3(from_py_with = arg::from_device)] from_device: bool,
    ) -> PyResult<Tensor> {
        let store = self.store(py)?;
        let options = Described { holder, kind, producer, keep, recompute_seconds, provenance };
        let spec = Self::spec(py, &name, &options)?;
        let here = if from_device { to_host(array)? } else { None };
        let source = Source::of(here.as_ref().unwrap_or(array), &"array")?;
        let spec = TensorSpec { dtype: source.dtype, shape: source.shape.clone(), ..spec };
        let holder = holding(py, &store, options.holder.as_deref());
        let mut reservation = py.detach(|| store.reserve(spec, &holder)).or_raise(py)?;
        fill(py, &mut reservation, &source)?;
        if here.is_some() {
            reservation.record_copy(CopyReason::DeviceTransfer, source.len_bytes());
        }
        drop(source);
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// Memory of a new tensor, zeroed, to be written in place and then published: no copy. Options as for :meth:`put`.
    #[pyo3(signature = (name, shape, dtype=None, *, holder=None, kind=None, producer=None, keep=true, recompute_seconds=0.0, provenance=None))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn empty(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arg::holder)] holder: Option<String>,
        #[pyo3(from_py_with = arg::kind)] kind: Option<String>,
        #[pyo3(from_py_with = arg::producer)] producer: Option<String>,
        #[pyo3(from_py_with = arg::keep)] keep: bool,
        #[pyo3(from_py_with = arg::recompute_seconds)] recompute_seconds: f64,
        #[pyo3(from_py_with = arg::provenance)] provenance: Option<String>,
    ) -> PyResult<Draft> {
        let store = self.store(py)?;
        let options = Described { holder, kind, producer, keep, recompute_seconds, provenance };
        let spec = Self::spec(py, &name, &options)?;
        let dtype = dtype.map_or(Ok(cotensor::DType::F32), arrays::dtype)?;
        let spec = TensorSpec { dtype, shape: arrays::shape(shape)?, ..spec };
        let holder = holding(py, &store, options.holder.as_deref());
        let reservation = py.detach(|| store.reserve_aliased(spec, &holder)).or_raise(py)?;
        Draft::new(reservation, store).or_raise(py)
    }

    /// Claims the computation ``key`` (64 hexadecimal digits, see :func:`content_hash`): its results, leased, if they are there;
    /// else a :class:`Ticket` to compute them, while others who claim it wait. While another holder computes, this waits
    /// ``timeout`` seconds, without one until the holder is done, and then raises :class:`TimedOutError`.
    #[pyo3(signature = (key, holder=None, timeout=None))]
    fn claim(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::key)] key: String,
        #[pyo3(from_py_with = arg::holder)] holder: Option<String>,
        #[pyo3(from_py_with = arg::timeout)] timeout: Option<f64>,
    ) -> PyResult<Claimed> {
        let store = self.store(py)?;
        let holder = holding(py, &store, holder.as_deref());
        let timeout = seconds(py, timeout)?;
        claim(py, store, &key, holder, timeout)
    }

    /// Forgets ``name``: nobody new can lease it, and its memory goes with the last lease.
    fn remove(&self, py: Python<'_>, #[pyo3(from_py_with = arg::name)] name: String) -> PyResult<()> {
        let store = self.store(py)?;
        py.detach(|| store.remove(&name)).or_raise(py)
    }

    fn __contains__(&self, py: Python<'_>, #[pyo3(from_py_with = arg::name)] name: String) -> PyResult<bool> {
        let store = self.store(py)?;
        let holder = holding(py, &store, None);
        match py.detach(|| store.get(&name, &holder).map(drop)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            outcome => outcome.or_raise(py).map(|()| true),
        }
    }

    /// The names that are published, in order.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let store = self.opened(py)?;
        let found = py.detach(|| match &store {
            Opened::Client(store) => store.report::<p::Diagnostics, Diagnostics>(),
            Opened::Embedded(store) => Ok(cotensor::StoreReports::diagnostics(&**store)),
        });
        let mut names: Vec<_> = found.or_raise(py)?.tensors.into_iter().map(|tensor| tensor.name).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Counters: tensors, bytes, hits and misses, copies with their reasons, evictions.
    fn get_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Stats>(py, |store| serde_json::to_value(store.stats()))
    }

    /// Every tensor with holders, bytes, device, age and hits; and every copy with its reason.
    fn get_diagnostics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Diagnostics>(py, |store| serde_json::to_value(store.diagnostics()))
    }

    /// What could be saved, and where.
    fn get_recommendations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Recommendations>(py, |store| serde_json::to_value(store.recommendations()))
    }

    /// Frees every tensor that nobody leases, and says what that gave.
    fn optimize_memory_usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.reported::<p::Optimize>(py, |store| serde_json::to_value(store.optimize()))
    }

    /// Changes the most that a store inside this process may hold; a daemon's is set by `cotensor serve --max-memory`.
    fn limit_memory(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::max_memory_mb)] max_memory_mb: u64,
    ) -> PyResult<()> {
        let store = self.store(py)?;
        py.detach(|| store.limit_memory(cotensor_core::Device::Cpu, max_memory_mb.saturating_mul(1 << 20))).or_raise(py)
    }

    /// Makes memory for ``count`` tensors of ``nbytes`` bytes ready, so that putting them takes the time of the copy: for moments
    /// with nothing better to do. Returns for how many there was room.
    #[pyo3(signature = (nbytes, count=1))]
    fn prepare(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::nbytes)] nbytes: usize,
        #[pyo3(from_py_with = arg::count)] count: usize,
    ) -> PyResult<usize> {
        let store = self.store(py)?;
        py.detach(|| store.prefault(cotensor_core::Device::Cpu, nbytes, count)).or_raise(py)
    }

    /// Lets go of the store. The connection to a daemon ends with the last tensor or array that came over it, since others may use
    /// memory again that nobody leases.
    fn close(&self, py: Python<'_>) {
        let store = self.inner.lock().unwrap_or_else(PoisonError::into_inner).store.take();
        py.detach(|| drop(store));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.opened(py) {
            Ok(Opened::Client(store)) => format!("<Store of the daemon at {}>", store.socket().display()),
            Ok(Opened::Embedded(store)) => {
                let stats = cotensor::StoreReports::stats(&*store);
                format!("<Store in this process, {} tensors, {} bytes>", stats.total_tensors, stats.memory_usage_bytes)
            }
            Err(_) => "<Store, closed>".to_owned(),
        }
    }
}

/// The holder of that name, or this program.
pub(crate) fn holding(py: Python<'_>, store: &Arc<dyn cotensor::Store>, name: Option<&str>) -> Holder {
    name.map_or_else(|| store.holder(&program(py)), |name| store.holder(name))
}

/// What this program is called, for people.
pub(crate) fn program(py: Python<'_>) -> String {
    let name = || -> PyResult<String> {
        let first: String = py.import("sys")?.getattr("argv")?.get_item(0)?.extract()?;
        let name = std::path::Path::new(&first).file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(name.filter(|name| !name.is_empty() && name != "-c").unwrap_or_else(|| "python".to_owned()))
    };
    name().unwrap_or_else(|_| "python".to_owned())
}

/// An array of a device, copied to the host; none where it is there already.
fn to_host<'py>(array: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !array.hasattr("__dlpack_device__")? || dlpack::is_host(dlpack::device_of(array)?.0) {
        return Ok(None);
    }
    if let Some(cpu) = array.getattr_opt("cpu")? {
        return cpu.call0().map(Some);
    }
    array.py().import("numpy")?.call_method1("asarray", (array,)).map(Some)
}

/// A report of the library as dicts and lists.
pub(crate) fn report<'py>(
    py: Python<'py>,
    text: impl FnOnce() -> serde_json::Result<String> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let text = py.detach(text).map_err(|error| raise(py, &Error::corrupt(error.to_string())))?;
    py.import("json")?.call_method1("loads", (text,))
}
