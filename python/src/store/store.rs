//! The class `Store`.

use super::backend::{Backend, BackendCell};
use super::builder::TensorBuilder;
use super::claim::{Claimed, claim};
use super::device_copy::shown_on;
use super::group::{group_spec, put_group};
use super::holder::{holder as holder_of, program};
use super::options::TensorOptions;
use super::pickle::{self, Reduced};
use super::tensor::Tensor;
use crate::args::{self, Kept, check_default, or_default};
use crate::command::daemon;
use crate::errors::{OrRaise, raise};
use crate::import::dtype;
use crate::import::value::Value;
use crate::interrupt::seconds;
use crate::release::after_releases;
use crate::settings::{user_cache, warn_of_unknown_keys};
use cotensor::{DType, Error, ErrorKind, Kind, LocalStore, SharingConfig};
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_core::Device;
use cotensor_memory::{LocalMemory, PackCache, SimulatedMemory};
use cotensor_store::TensorId;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A store keeps tensors by name and leases them.
///
/// ``Store()`` is inside this process. ``cotensor.connect()`` returns the daemon's store, which all processes of this
/// user share. Both have the same methods, and any thread may call them.
///
/// In a forked child, a store of the daemon connects again on first use. A store inside the parent raises
/// :class:`ConflictError`.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Store {
    backend: BackendCell,
    /// The cache folder of a local store.
    cache: Option<Arc<PackCache>>,
}

impl Store {
    pub(crate) fn new(backend: Backend) -> Self {
        Self { backend: BackendCell::new(backend), cache: None }
    }

    /// A local store without limits.
    pub(crate) fn in_process() -> Self {
        Self::new(Backend::Local(LocalStore::builder().memory(Arc::new(LocalMemory::default())).build()))
    }

    /// A local store without limits, which keeps weights for other processes in the user's cache folder.
    ///
    /// # Errors
    /// As [`user_cache`].
    pub(crate) fn in_process_with_cache(py: Python<'_>) -> PyResult<Self> {
        let cache = user_cache(py)?;
        let mut builder = LocalStore::builder().memory(Arc::new(LocalMemory::default()));
        if let Some(cache) = &cache {
            builder = builder.cache(Arc::clone(cache) as Arc<_>);
        }
        Ok(Self { cache, ..Self::new(Backend::Local(builder.build())) })
    }

    pub(super) fn backend(&self, py: Python<'_>) -> PyResult<Backend> {
        self.backend.get().or_raise(py)
    }

    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn cotensor::Store>> {
        Ok(self.backend(py)?.store())
    }

    /// The folder for weights in the layout of an engine's kernels: a local store's own, and the user's for a client of
    /// the daemon. `None` without a folder that can be used.
    ///
    /// # Errors
    /// As [`user_cache`].
    pub(crate) fn cache(&self, py: Python<'_>) -> PyResult<Option<Arc<PackCache>>> {
        if let Backend::Local(_) = self.backend(py)? {
            return Ok(self.cache.clone());
        }
        user_cache(py)
    }

    /// The connection to the daemon, for `what`.
    ///
    /// # Errors
    /// `Unsupported` for a local store, which has no `what`.
    pub(crate) fn client_store(&self, py: Python<'_>, what: &str) -> PyResult<Arc<ClientStore>> {
        match self.backend(py)? {
            Backend::Client(store) => Ok(store),
            Backend::Local(_) => {
                let message = format!("a local store has no {what}: use cotensor.connect()");
                Err(raise(py, &Error::unsupported(message)))
            }
        }
    }

    /// # Errors
    /// `Io` when the daemon does not answer.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.backend(py)? {
            Backend::Client(store) => py.detach(|| store.request::<p::Ping>(&p::Empty {})).or_raise(py).map(drop),
            Backend::Local(_) => Ok(()),
        }
    }
}

#[pymethods]
impl Store {
    /// A store inside this process.
    ///
    /// ``max_memory_mb`` limits the memory of all its tensors together, in MiB. ``cache`` is a folder that keeps
    /// weights for other processes and later runs. ``allowed_types`` (kinds), ``max_shared_tensor_size`` (bytes)
    /// and ``enable_shared_tensors`` restrict which tensors it shares; it refuses the others.
    #[new]
    #[pyo3(signature = (*, max_memory_mb=None, cache=None, enable_shared_tensors=true, allowed_types=None, max_shared_tensor_size=None))]
    fn create(
        py: Python<'_>,
        #[pyo3(from_py_with = args::max_memory_mb)] max_memory_mb: Option<u64>,
        #[pyo3(from_py_with = args::cache)] cache: Option<PathBuf>,
        #[pyo3(from_py_with = args::enable_shared_tensors)] enable_shared_tensors: bool,
        #[pyo3(from_py_with = args::allowed_types)] allowed_types: Option<Vec<String>>,
        #[pyo3(from_py_with = args::max_shared_tensor_size)] max_shared_tensor_size: Option<u64>,
    ) -> PyResult<Self> {
        let kinds =
            allowed_types.map(|kinds| kinds.iter().map(|kind| kind.parse::<Kind>()).collect::<Result<Vec<_>, _>>());
        let allowed_types = kinds.transpose().map_err(|error| error.in_field("allowed_types")).or_raise(py)?;
        let sharing = SharingConfig {
            enable_shared_tensors,
            allowed_types,
            max_shared_tensor_size_bytes: max_shared_tensor_size,
        };
        let mut builder = LocalStore::builder().memory(Arc::new(LocalMemory::default())).config(sharing);
        if let Some(mb) = max_memory_mb {
            builder = builder.max_memory_bytes(mb.saturating_mul(1 << 20));
        }
        let cache = cache.map(|folder| PackCache::open(&folder)).transpose().or_raise(py)?.map(Arc::new);
        if let Some(cache) = &cache {
            builder = builder.cache(Arc::clone(cache) as Arc<_>);
        }
        Ok(Self { cache, ..Self::new(Backend::Local(builder.build())) })
    }

    /// Connects to the daemon's store. ``socket`` is the daemon's socket: by default ``COTENSOR_SOCKET``, else the
    /// configuration file's, else the one of ``port``, else the default path. Without a daemon at the port's socket, this user's
    /// daemon that serves HTTP at ``port`` is taken. ``client`` names this process in reports. The daemon has to answer within
    /// ``timeout`` seconds. If none answers, starts one in the background, unless ``autostart``, ``COTENSOR_AUTOSTART`` or the
    /// file forbids it. With ``restart``, only a later call starts one, after the daemon has ended.
    #[staticmethod]
    #[pyo3(signature = (socket=None, *, port=None, client=None, timeout=None, autostart=true, restart=false))]
    fn connect(
        py: Python<'_>,
        #[pyo3(from_py_with = args::socket)] socket: Option<PathBuf>,
        port: Option<u16>,
        #[pyo3(from_py_with = args::client)] client: Option<String>,
        #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>,
        autostart: bool,
        restart: bool,
    ) -> PyResult<Self> {
        warn_of_unknown_keys(py)?;
        let timeout = seconds(py, timeout)?.unwrap_or(Duration::MAX);
        let client = client.unwrap_or_else(|| program(py));
        let builder = ClientStore::builder(&client).timeout(timeout);
        let mut builder = SimulatedMemory::all().fold(builder, |builder, memory| builder.memory(Arc::new(memory)));
        if let Some(socket) = socket {
            builder = builder.socket(socket);
        }
        if let Some(port) = port {
            builder = builder.port(port);
        }
        if autostart {
            builder = builder.start(daemon(py)?);
        } else if restart {
            builder = builder.start_again(daemon(py)?);
        }
        let store = py.detach(|| builder.connect()).or_raise(py)?;
        Ok(Self::new(Backend::Client(store)))
    }

    /// Pickles a handle for other processes of this user. A process that opens it makes its own connection.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        match self.backend(py)? {
            Backend::Client(store) => pickle::reduce_store(py, &store),
            Backend::Local(_) => {
                let message = "a local store cannot be sent: use the daemon's, cotensor.connect()";
                Err(raise(py, &Error::unsupported(message)))
            }
        }
    }

    /// Leases the newest version of ``name`` for ``holder``, by default this program. If the name does not exist,
    /// returns ``default``, without which it raises :class:`NotFoundError`.
    ///
    /// ``device`` is where this process uses it, such as ``"cuda:1"``. A GPU reads the memory of another one if the driver allows that.
    /// Otherwise, and for a tensor of the host, the GPU gets a copy, which is counted and which all programs share until its last lease
    /// ends. The copy has the name of its tensor and its bytes, and no metadata.
    #[pyo3(signature = (name, *default, holder=None, device=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::name)] name: String,
        default: &Bound<'py, PyTuple>,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
        #[pyo3(from_py_with = args::device)] device: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        check_default(default)?;
        let store = self.store(py)?;
        let device = Value::target(py, device.as_deref(), false)?;
        let holder = holder_of(py, &store, holder.as_deref());
        let show = |lease| shown_on(lease, &store, &holder, device);
        let found = match py.detach(|| store.get(&name, &holder).map(show)) {
            // A device that is missing is an error also with a default.
            Ok(shown) => Ok(shown.or_raise(py)?),
            Err(error) => Err(error),
        };
        or_default(py, found, default)
    }

    /// Leases one version by its ``id``.
    #[pyo3(signature = (id, holder=None))]
    fn lease(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::id)] id: (u64, u64),
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
    ) -> PyResult<Tensor> {
        let store = self.store(py)?;
        let holder = holder_of(py, &store, holder.as_deref());
        let id = TensorId { name_id: id.0, version: id.1 };
        let lease = py.detach(|| store.lease(id, &holder)).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// Publishes an array under ``name``, with one counted copy for any strides. Publishing again makes a new version;
    /// leases of the earlier version stay valid.
    ///
    /// With ``keep``, the tensor stays without leases until it is removed or evicted; with a number of seconds or a ``datetime.timedelta``,
    /// for that long after its last lease at most. Without ``keep``, it is freed with its last lease. Eviction starts with tensors of few
    /// ``recompute_seconds`` per byte.
    /// ``metadata`` is a small dict with values of JSON, which readers find in :attr:`Tensor.metadata`. ``from_device``
    /// permits an array on a device, which is copied to the host first. Without it, an array on a CUDA device (by DLPack or
    /// ``__cuda_array_interface__``) is copied on that device, and the tensor stays there; ``device`` (``"cuda:1"``, ``"cpu"``) chooses
    /// another one. With ``sealed``, and for weights, this process cannot
    /// write the bytes after publishing; otherwise tensors of up to 64 MiB lie in memory that it uses again. An array in memory of
    /// :meth:`producing` is published where it is, also as a weight, unless ``sealed``: this process must not write it any more.
    #[pyo3(signature = (name, array, *, holder=None, kind=None, producer=None, keep=Kept::DEFAULT, recompute_seconds=0.0, provenance=None, metadata=None, from_device=false, sealed=false, device=None), text_signature = "($self, name, array, *, holder=None, kind=None, producer=None, keep=True, recompute_seconds=0.0, provenance=None, metadata=None, from_device=False, sealed=False, device=None)")]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
        #[pyo3(from_py_with = args::kind)] kind: Option<String>,
        #[pyo3(from_py_with = args::producer)] producer: Option<String>,
        #[pyo3(from_py_with = args::kept)] keep: Kept,
        #[pyo3(from_py_with = args::recompute_seconds)] recompute_seconds: f64,
        #[pyo3(from_py_with = args::provenance)] provenance: Option<String>,
        metadata: Option<Py<PyAny>>,
        #[pyo3(from_py_with = args::from_device)] from_device: bool,
        #[pyo3(from_py_with = args::sealed)] sealed: bool,
        #[pyo3(from_py_with = args::device)] device: Option<String>,
    ) -> PyResult<Tensor> {
        let backend = self.backend(py)?;
        let store = backend.store();
        let options = TensorOptions { holder, kind, producer, keep, recompute_seconds, provenance, metadata };
        let device = Value::target(py, device.as_deref(), from_device)?;
        let source = Value::of(array, device.is_some_and(Device::is_host), &"array")?;
        let spec = options.spec(py, &name, source.dtype(), source.shape())?.on(device.unwrap_or(source.device()));
        let holder = holder_of(py, &store, options.holder.as_deref());
        let client = backend.client().filter(|_| !sealed);
        if let Some(lease) = source.publish_in_place(py, client.as_deref(), &spec, &holder)? {
            return Ok(Tensor::new(lease, store));
        }
        let reserve =
            |spec| if sealed { store.reserve_sealed(spec, &holder) } else { store.reserve_to_fill(spec, &holder) };
        let mut reservation = py.detach(|| after_releases(spec, reserve)).or_raise(py)?;
        source.fill(py, &mut reservation)?;
        drop(source);
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// Publishes ``arrays``, a mapping of names to arrays, under the one ``name``, with one counted copy of each. They
    /// are leased, versioned and freed together: ``tensor["codes"]`` is a view of a member, and
    /// :meth:`Tensor.members` returns all. Options as for :meth:`put`.
    #[pyo3(signature = (name, arrays, *, holder=None, kind=None, producer=None, keep=Kept::DEFAULT, recompute_seconds=0.0, provenance=None, metadata=None, from_device=false), text_signature = "($self, name, arrays, *, holder=None, kind=None, producer=None, keep=True, recompute_seconds=0.0, provenance=None, metadata=None, from_device=False)")]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn put_group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        arrays: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
        #[pyo3(from_py_with = args::kind)] kind: Option<String>,
        #[pyo3(from_py_with = args::producer)] producer: Option<String>,
        #[pyo3(from_py_with = args::kept)] keep: Kept,
        #[pyo3(from_py_with = args::recompute_seconds)] recompute_seconds: f64,
        #[pyo3(from_py_with = args::provenance)] provenance: Option<String>,
        metadata: Option<Py<PyAny>>,
        #[pyo3(from_py_with = args::from_device)] from_device: bool,
    ) -> PyResult<Tensor> {
        let options = TensorOptions { holder, kind, producer, keep, recompute_seconds, provenance, metadata };
        put_group(py, self.store(py)?, &name, arrays, &options, from_device)
    }

    /// As :meth:`empty`, for a copy of a tensor, or of a group with the name, dtype and shape of each of its ``members``. Its memory is made
    /// when the bytes come: by ``_populate`` part by part, or by the first other access.
    #[pyo3(signature = (name, shape, dtype, members, *, kind=None, producer=None, keep=Kept::DEFAULT, metadata=None), text_signature = "($self, name, shape, dtype, members, *, kind=None, producer=None, keep=True, metadata=None)")]
    #[expect(clippy::too_many_arguments, reason = "options by keyword")]
    fn _empty_copy(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::shape)] shape: Vec<usize>,
        #[pyo3(from_py_with = args::dtype)] dtype: String,
        members: Vec<(String, String, Vec<usize>)>,
        #[pyo3(from_py_with = args::kind)] kind: Option<String>,
        #[pyo3(from_py_with = args::producer)] producer: Option<String>,
        #[pyo3(from_py_with = args::kept)] keep: Kept,
        metadata: Option<Py<PyAny>>,
    ) -> PyResult<TensorBuilder> {
        let common =
            TensorOptions { holder: None, provenance: None, recompute_seconds: 0.0, kind, producer, keep, metadata };
        let dtype = dtype.parse::<DType>().or_raise(py)?;
        let spec = if members.is_empty() {
            common.spec(py, &name, dtype, &shape)?
        } else {
            group_spec(py, &name, &members, &common)?
        };
        let store = self.store(py)?;
        let holder = holder_of(py, &store, None);
        let reservation =
            py.detach(|| after_releases(spec, |spec| store.reserve_aliased(spec, &holder))).or_raise(py)?;
        TensorBuilder::unpopulated(reservation, store).or_raise(py)
    }

    /// Returns an unpublished, zeroed tensor to write in place and publish without a copy. Options as for :meth:`put`. With
    /// ``device="cuda:0"``, it is on the GPU.
    #[pyo3(signature = (name, shape, dtype=None, *, holder=None, kind=None, producer=None, keep=Kept::DEFAULT, recompute_seconds=0.0, provenance=None, metadata=None, device=None), text_signature = "($self, name, shape, dtype=None, *, holder=None, kind=None, producer=None, keep=True, recompute_seconds=0.0, provenance=None, metadata=None, device=None)")]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn empty(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
        #[pyo3(from_py_with = args::kind)] kind: Option<String>,
        #[pyo3(from_py_with = args::producer)] producer: Option<String>,
        #[pyo3(from_py_with = args::kept)] keep: Kept,
        #[pyo3(from_py_with = args::recompute_seconds)] recompute_seconds: f64,
        #[pyo3(from_py_with = args::provenance)] provenance: Option<String>,
        metadata: Option<Py<PyAny>>,
        #[pyo3(from_py_with = args::device)] device: Option<String>,
    ) -> PyResult<TensorBuilder> {
        let store = self.store(py)?;
        let device = Value::target(py, device.as_deref(), false)?.unwrap_or_default();
        let options = TensorOptions { holder, kind, producer, keep, recompute_seconds, provenance, metadata };
        let dtype = dtype.map_or(Ok(DType::F32), dtype::dtype)?;
        let spec = options.spec(py, &name, dtype, &dtype::shape(shape)?)?.on(device);
        let holder = holder_of(py, &store, options.holder.as_deref());
        let reserve = |spec| store.reserve_aliased(spec, &holder);
        let reservation = py.detach(|| after_releases(spec, reserve)).or_raise(py)?;
        py.detach(|| TensorBuilder::new(reservation, store)).or_raise(py)
    }

    /// Claims the computation ``key`` (64 hexadecimal digits, see :func:`content_hash`). Returns its results, leased,
    /// if they are published. Otherwise the first caller gets a :class:`Ticket` to compute them, and later callers
    /// wait for the results. Raises :class:`TimedOutError` after ``timeout`` seconds of waiting; without
    /// ``timeout`` there is no limit.
    #[pyo3(signature = (key, holder=None, timeout=None))]
    fn claim(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::key)] key: String,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
        #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>,
    ) -> PyResult<Claimed> {
        let backend = self.backend(py)?;
        let holder = holder_of(py, &backend.store(), holder.as_deref());
        let timeout = seconds(py, timeout)?;
        claim(py, &backend, &key, holder, timeout)
    }

    /// The number of leases of each version of ``name``, of all processes: each process has one of a version.
    fn _leases(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
    ) -> PyResult<HashMap<(u64, u64), u32>> {
        let store = self.client_store(py, "leases of other processes")?;
        let found = py.detach(|| store.request::<p::ListHolders>(&p::NameParams { name })).or_raise(py)?;
        let leases =
            |version: &p::TensorInfo| ((version.id.name_id, version.id.version), version.holders.values().sum());
        Ok(found.versions.iter().map(leases).collect())
    }

    /// Removes ``name`` from the store. Existing leases stay valid; the memory is freed with the last one. A name that does
    /// not exist raises :class:`NotFoundError` unless ``missing_ok``. With ``id`` (:attr:`Tensor.id`), a name whose newest version
    /// is another one counts as one that does not exist, and stays.
    #[pyo3(signature = (name, *, missing_ok=false, id=None))]
    fn remove(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::missing_ok)] missing_ok: bool,
        #[pyo3(from_py_with = args::id)] id: Option<(u64, u64)>,
    ) -> PyResult<()> {
        let store = self.store(py)?;
        let id = id.map(|(name_id, version)| TensorId { name_id, version });
        match py.detach(|| store.remove_version(&name, id)) {
            Err(error) if missing_ok && error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome.or_raise(py),
        }
    }

    /// Sets the memory limit of a local store, in MiB. `cotensor serve --max-memory` sets a daemon's.
    fn limit_memory(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::max_memory_mb)] max_memory_mb: u64,
    ) -> PyResult<()> {
        let store = self.store(py)?;
        py.detach(|| store.limit_memory(Device::Cpu, max_memory_mb.saturating_mul(1 << 20))).or_raise(py)
    }

    /// Prefaults memory for ``count`` tensors of ``nbytes`` bytes, so that a later ``put`` of each takes only the time
    /// of the copy. Call it while the program is idle. Returns the number of tensors that the memory limit admits. With ``sealed``, it
    /// is memory for ``put(…, sealed=True)``, ``empty`` and weights.
    #[pyo3(signature = (nbytes, count=1, *, sealed=false))]
    fn prefault(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::nbytes)] nbytes: usize,
        #[pyo3(from_py_with = args::count)] count: usize,
        #[pyo3(from_py_with = args::sealed)] sealed: bool,
    ) -> PyResult<usize> {
        let store = self.store(py)?;
        let prefault = || {
            if sealed {
                store.prefault(Device::Cpu, nbytes, count)
            } else {
                store.prefault_to_fill(Device::Cpu, nbytes, count)
            }
        };
        py.detach(prefault).or_raise(py)
    }

    /// Closes the store. The connection to a daemon stays open until the last tensor or array from it is dropped: its
    /// leases keep that memory.
    fn close(&self, py: Python<'_>) {
        let backend = self.backend.take();
        py.detach(|| drop(backend));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.backend(py) {
            Ok(Backend::Client(store)) => format!("<Store of the daemon at {}>", store.socket().display()),
            Ok(Backend::Local(store)) => {
                let stats = cotensor::StoreReports::stats(&*store);
                format!("<Store in this process, {} tensors, {} bytes>", stats.total_tensors, stats.memory_usage_bytes)
            }
            Err(_) => "<Store, closed>".to_owned(),
        }
    }
}
