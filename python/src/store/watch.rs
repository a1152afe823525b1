//! Waiting for names, and watching them.

use super::holder::holder as holder_of;
use super::store::Store;
use super::tensor::Tensor;
use super::watch_state::{Next, WatchState, Watched};
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_store::{ChangePosition, EveryVersion, Lease, NameChange, NameChanges, NameFilter, TensorId};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long a wait for memory takes before signals are handled.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A new version of a name, or its removal.
#[pyclass(frozen, eq, module = "cotensor", name = "NameChange")]
pub(crate) struct Change {
    /// The name.
    #[pyo3(get)]
    name: String,
    /// The newest version's number; ``None`` if the name was removed or its tensor was freed.
    #[pyo3(get)]
    version: Option<u64>,
    /// The newest version, for :meth:`Store.lease`; ``None`` as for ``version``.
    #[pyo3(get)]
    id: Option<(u64, u64)>,
    /// The version, leased, if the watch is one of every version; otherwise ``None``.
    #[pyo3(get)]
    tensor: Option<Py<Tensor>>,
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.id) == (&other.name, other.id)
    }
}

impl Change {
    fn new(py: Python<'_>, next: Next, store: &Arc<dyn cotensor::Store>) -> PyResult<Self> {
        let Next { change: NameChange { name, id }, lease } = next;
        let tensor = lease.map(|lease| Py::new(py, Tensor::new(lease, Arc::clone(store)))).transpose()?;
        Ok(Self { name, version: id.map(|id| id.version), id: id.map(|id| (id.name_id, id.version)), tensor })
    }
}

#[pymethods]
impl Change {
    /// Whether the name was removed, or its tensor was freed.
    #[getter]
    fn removed(&self) -> bool {
        self.version.is_none()
    }

    fn __repr__(&self) -> String {
        match self.version {
            Some(version) => format!("<NameChange {:?} version {version}>", self.name),
            None => format!("<NameChange {:?} removed>", self.name),
        }
    }
}

/// Iterates over changes of names: new versions and removals. :meth:`Store.watch` makes it.
///
/// A reader that is slow gets the newest version of each name once: versions in between are left out, and :attr:`dropped` stays 0. With
/// ``every``, it gets each version; the store queues them, and :attr:`dropped` counts those that the queue had no room for. The iterator
/// waits for the next change, and ends after ``close()``.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Watch(ProcessLocal<Arc<WatchInner>>);

/// A watch, which also the queue of an asyncio program holds.
pub(super) struct WatchInner {
    watched: Watched,
    state: Mutex<WatchState>,
    closed: AtomicBool,
    /// Whether the queue of every version has ended.
    ended: AtomicBool,
}

impl WatchInner {
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// The position of the reader.
    pub(super) fn position(&self) -> ChangePosition {
        lock(&self.state).position
    }

    /// Applies the store's answer to a wait from the position `since`. [`Watch::read`] returns its changes.
    ///
    /// If the answer of a cancelled wait came first, the reader has another position, and this answer would repeat changes. It has no
    /// effect then: the next wait begins at the reader's position.
    ///
    /// # Errors
    /// As [`NameStore`](cotensor_store::NameStore).
    pub(super) fn apply(&self, since: ChangePosition, changes: NameChanges) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let is_next = state.position == since;
        let applied = if is_next { state.apply(&self.watched, changes, self.is_closed()) } else { Ok(()) };
        self.end_if_closed(&state);
        applied
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The lock of the reader.
    ///
    /// # Errors
    /// `Conflict` while another thread reads.
    fn lock(&self) -> Result<MutexGuard<'_, WatchState>, Error> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread reads this watch: make one for each thread";
                Err(Error::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// Ends the queue of every version of a closed watch.
    fn end_if_closed(&self, state: &WatchState) {
        if self.watched.every.is_some() && self.is_closed() && !self.ended.swap(true, Ordering::SeqCst) {
            self.watched.store.end_versions(state.position);
        }
    }

    /// Ends the iteration. A thread that reads ends the queue.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Ok(state) = self.lock() {
            self.end_if_closed(&state);
        }
    }
}

impl Drop for WatchInner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Watch {
    pub(super) fn inner(&self) -> &Arc<WatchInner> {
        &self.0
    }

    /// The next change. `None` after `close()`, or when `timeout` has passed.
    fn read(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<Change>> {
        let inner = Arc::clone(self.0.get(py, "watch")?);
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let signals = SignalCheck::default();
        let keep_waiting = || !inner.is_closed() && signals.none_raised();
        let next = py.detach(|| {
            let mut state = inner.lock()?;
            let next = if inner.is_closed() { Ok(None) } else { state.next(&inner.watched, end, &keep_waiting) };
            inner.end_if_closed(&state);
            next
        });
        signals.result()?;
        next.or_raise(py)?.map(|next| Change::new(py, next, &inner.watched.store)).transpose()
    }
}

#[pymethods]
impl Watch {
    /// The next change. Raises :class:`TimedOutError` after ``timeout`` seconds without one.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>) -> PyResult<Change> {
        let timeout = seconds(py, timeout)?;
        let missing = || {
            if self.0.is_closed() {
                Error::new(ErrorKind::Conflict, "this watch is closed")
            } else {
                Error::new(ErrorKind::TimedOut, "no watched name changed in time")
            }
        };
        self.read(py, timeout)?.ok_or_else(|| raise(py, &missing()))
    }

    /// A change that has arrived, without waiting for one; ``None`` without one. A watch of every version leases the version.
    ///
    /// The thread of a :class:`ChangeQueue` may still apply the answer of a cancelled wait, which can be a call of the daemon. With
    /// ``wait``, this waits for its end; otherwise it raises :class:`ConflictError`.
    #[pyo3(signature = (*, wait))]
    fn _take(&self, py: Python<'_>, wait: bool) -> PyResult<Option<Change>> {
        let inner = self.0.get(py, "watch")?;
        let taken = py.detach(|| {
            let mut state = if wait { lock(&inner.state) } else { inner.lock()? };
            state.take(&inner.watched)
        });
        taken.or_raise(py)?.map(|next| Change::new(py, next, &inner.watched.store)).transpose()
    }

    /// The number of changes so far that a watch of every version did not return: the queue had no room for them, the store needed their
    /// memory, or the daemon's server was replaced. Always 0 without ``every``.
    #[getter]
    fn dropped(&self) -> u64 {
        self.0.watched.dropped.load(Ordering::SeqCst)
    }

    /// Ends the iteration, also of a thread that waits.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    /// Whether ``close()`` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Change>> {
        self.read(py, None)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let (kind, text) = match &self.0.watched.filter {
            NameFilter::Name(name) => ("name", name),
            NameFilter::Prefix(prefix) => ("prefix", prefix),
        };
        format!("<Watch of {kind} {text:?}>")
    }
}

#[pymethods]
impl Store {
    /// Leases the newest version of ``name``, and waits until there is one. With ``after``, a tensor, it waits for another
    /// version than that one. Raises :class:`TimedOutError` after ``timeout`` seconds; without ``timeout`` there is no limit.
    #[pyo3(signature = (name, timeout=None, *, after=None, holder=None))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>,
        after: Option<&Bound<'_, Tensor>>,
        #[pyo3(from_py_with = args::holder)] holder: Option<String>,
    ) -> PyResult<Tensor> {
        let (store, client) = (self.store(py)?, self.backend(py)?.client());
        let holder = holder_of(py, &store, holder.as_deref());
        let end = seconds(py, timeout)?.and_then(|timeout| Instant::now().checked_add(timeout));
        let after = after.map(|after| Ok::<_, PyErr>(after.get().held(py)?.lease().id())).transpose()?;
        let signals = SignalCheck::default();
        let filter = NameFilter::Name(name.clone());
        let wait = || {
            let mut position = None;
            loop {
                if let Some(lease) = lease_other(&*store, &name, after, &holder)? {
                    return Ok(Some(lease));
                }
                let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                // Woken by memory, without the daemon's socket.
                if let (Some(client), Some(after)) = (&client, after)
                    && client.wait_while_newest(&name, after, left.min(CHECK_INTERVAL))?
                {
                    if left.is_zero() || !signals.none_raised() {
                        return Ok(None);
                    }
                    continue;
                }
                // The first answer is the position only: a version that was published meanwhile is found above.
                let first = position.is_none();
                let changes = store.changes(&filter, position, left, &|| signals.none_raised())?;
                if !first && changes.changes.is_empty() && !changes.incomplete {
                    return Ok(None);
                }
                position = Some(changes.position);
            }
        };
        let found: Result<Option<Lease>, Error> = py.detach(wait);
        signals.result()?;
        let late = || {
            let what = if after.is_some() { "no other version of" } else { "no tensor is named" };
            raise(py, &Error::new(ErrorKind::TimedOut, format!("{what} {name:?} in time")).in_field(name.as_str()))
        };
        Ok(Tensor::new(found.or_raise(py)?.ok_or_else(late)?, store))
    }

    /// Watches the names that start with ``prefix``, or the one ``name``: an iterator over :class:`NameChange`, one for each
    /// new version and each removal from now on. With ``existing``, the names that exist are the first changes.
    ///
    /// A slow reader gets only the newest version of each name. With ``every``, the store queues each version, and leases it until it is read:
    /// :attr:`NameChange.tensor` has it. The queue has at most ``versions_max`` changes (256, up to 4096), and leases at most ``bytes_max``
    /// bytes (1 GiB), which count as leases of this program. The oldest are dropped, and counted in :attr:`Watch.dropped`.
    #[pyo3(signature = (prefix=None, *, name=None, existing=false, every=false, versions_max=None, bytes_max=None))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn watch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::prefix)] prefix: Option<String>,
        #[pyo3(from_py_with = args::name)] name: Option<String>,
        #[pyo3(from_py_with = args::existing)] existing: bool,
        #[pyo3(from_py_with = args::every)] every: bool,
        #[pyo3(from_py_with = args::versions_max)] versions_max: Option<usize>,
        #[pyo3(from_py_with = args::bytes_max)] bytes_max: Option<u64>,
    ) -> PyResult<Watch> {
        let filter = name_filter(py, prefix, name)?;
        let store = self.store(py)?;
        if !every && (versions_max.is_some() || bytes_max.is_some()) {
            let field = if versions_max.is_some() { "versions_max" } else { "bytes_max" };
            return Err(raise(py, &Error::invalid("only a watch with every=True has a queue").in_field(field)));
        }
        let every = every.then(|| {
            let default = EveryVersion::new(filter.clone());
            let versions_max = versions_max.unwrap_or(default.versions_max);
            EveryVersion { versions_max, bytes_max: bytes_max.unwrap_or(default.bytes_max), existing, ..default }
        });
        let holder = holder_of(py, &store, None);
        let watched = Watched { store, filter, every, holder, dropped: Default::default() };
        let state = py.detach(|| WatchState::new(&watched, existing)).or_raise(py)?;
        let (closed, ended) = Default::default();
        Ok(Watch(ProcessLocal::new(Arc::new(WatchInner { watched, state: Mutex::new(state), closed, ended }))))
    }
}

/// # Errors
/// `Invalid` for both a prefix and a name.
fn name_filter(py: Python<'_>, prefix: Option<String>, name: Option<String>) -> PyResult<NameFilter> {
    match (prefix, name) {
        (Some(_), Some(_)) => Err(raise(py, &Error::invalid("pass a prefix or a name, not both").in_field("name"))),
        (_, Some(name)) => Ok(NameFilter::Name(name)),
        (prefix, None) => Ok(NameFilter::Prefix(prefix.unwrap_or_default())),
    }
}

/// Leases the newest version of `name` unless there is none or it is `after`.
fn lease_other(
    store: &dyn cotensor::Store,
    name: &str,
    after: Option<TensorId>,
    holder: &cotensor_store::Holder,
) -> Result<Option<Lease>, Error> {
    match store.find_name(name)? {
        Some(id) if Some(id) != after => {}
        _ => return Ok(None),
    }
    match store.get(name, holder) {
        Ok(lease) if Some(lease.id()) != after => Ok(Some(lease)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
