//! Waiting for names, and watching them.

use super::holder::holder as holder_of;
use super::store::Store;
use super::tensor::Tensor;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind};
use cotensor_store::{ChangePosition, Lease, NameChange, NameChanges, NameFilter, TensorId};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a wait for memory takes before signals are handled.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A new version of a name, or its removal.
#[pyclass(frozen, eq, module = "cotensor", name = "NameChange")]
#[derive(PartialEq)]
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
}

impl From<NameChange> for Change {
    fn from(NameChange { name, id }: NameChange) -> Self {
        Self { name, version: id.map(|id| id.version), id: id.map(|id| (id.name_id, id.version)) }
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
/// A reader that is slow gets the newest version of each name once: versions in between are left out. The iterator waits
/// for the next change, and ends after ``close()``.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Watch(ProcessLocal<Arc<WatchInner>>);

/// A watch, which also the queue of an asyncio program holds.
pub(super) struct WatchInner {
    store: Arc<dyn cotensor::Store>,
    filter: NameFilter,
    state: Mutex<WatchState>,
    closed: AtomicBool,
}

/// What the reader has seen.
struct WatchState {
    position: ChangePosition,
    /// The newest version of each selected name.
    known: HashMap<String, TensorId>,
    pending: VecDeque<NameChange>,
}

impl WatchState {
    /// The names that exist now. With `existing`, they are the first changes.
    ///
    /// # Errors
    /// As [`NameStore`](cotensor_store::NameStore).
    fn new(store: &dyn cotensor::Store, filter: &NameFilter, existing: bool) -> Result<Self, Error> {
        // The position comes first: a change that follows is seen in the list, or after it.
        let position = store.changes(filter, None, Duration::ZERO, &|| true)?.position;
        let mut state = Self { position, known: HashMap::new(), pending: VecDeque::new() };
        state.list(store, filter)?;
        if !existing {
            state.pending.clear();
        }
        Ok(state)
    }

    /// Compares the names that exist with those that are known.
    fn list(&mut self, store: &dyn cotensor::Store, filter: &NameFilter) -> Result<(), Error> {
        let named: Vec<(String, TensorId)> = match filter {
            NameFilter::Name(name) => store.find_name(name)?.map(|id| (name.clone(), id)).into_iter().collect(),
            NameFilter::Prefix(prefix) => {
                store.names(prefix)?.into_iter().map(|named| (named.name, named.id)).collect()
            }
        };
        let found: HashMap<&str, TensorId> = named.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        let mut gone: Vec<String> =
            self.known.keys().filter(|name| !found.contains_key(name.as_str())).cloned().collect();
        gone.sort_unstable();
        gone.into_iter().for_each(|name| self.add(NameChange { name, id: None }));
        named.into_iter().for_each(|(name, id)| self.add(NameChange { name, id: Some(id) }));
        Ok(())
    }

    /// Adds a change unless it is known. It replaces a change of the same name that is not read yet.
    fn add(&mut self, change: NameChange) {
        let before = match change.id {
            Some(id) => self.known.insert(change.name.clone(), id),
            None => self.known.remove(&change.name),
        };
        if before != change.id {
            self.pending.retain(|unread| unread.name != change.name);
            self.pending.push_back(change);
        }
    }

    /// Applies an answer of the store.
    fn apply(&mut self, store: &dyn cotensor::Store, filter: &NameFilter, changes: NameChanges) -> Result<(), Error> {
        self.position = changes.position;
        changes.changes.into_iter().for_each(|change| self.add(change));
        if changes.incomplete { self.list(store, filter) } else { Ok(()) }
    }

    /// The next change; waits for one until `end` and while `keep_waiting` is true.
    fn next(
        &mut self,
        store: &dyn cotensor::Store,
        filter: &NameFilter,
        end: Option<Instant>,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Option<NameChange>, Error> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(Some(change));
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let changes = store.changes(filter, Some(self.position), left, keep_waiting)?;
            self.apply(store, filter, changes)?;
            if self.pending.is_empty() && (left.is_zero() || !keep_waiting()) {
                return Ok(None);
            }
        }
    }
}

impl WatchInner {
    pub(super) fn filter(&self) -> &NameFilter {
        &self.filter
    }

    /// The position of the reader.
    pub(super) fn position(&self) -> ChangePosition {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).position
    }

    /// Applies an answer of the store. [`Watch::read`] returns its changes.
    ///
    /// # Errors
    /// As [`NameStore`](cotensor_store::NameStore).
    pub(super) fn apply(&self, changes: NameChanges) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.apply(&*self.store, &self.filter, changes)
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
        let is_closed = || inner.closed.load(Ordering::SeqCst);
        let keep_waiting = || !is_closed() && signals.none_raised();
        let next = py.detach(|| {
            let mut state = inner.lock()?;
            match is_closed() {
                true => Ok(None),
                false => state.next(&*inner.store, &inner.filter, end, &keep_waiting),
            }
        });
        signals.result()?;
        Ok(next.or_raise(py)?.map(Change::from))
    }
}

#[pymethods]
impl Watch {
    /// The next change. Raises :class:`TimedOutError` after ``timeout`` seconds without one.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>) -> PyResult<Change> {
        let timeout = seconds(py, timeout)?;
        let missing = || match self.0.closed.load(Ordering::SeqCst) {
            true => Error::new(ErrorKind::Conflict, "this watch is closed"),
            false => Error::new(ErrorKind::TimedOut, "no watched name changed in time"),
        };
        self.read(py, timeout)?.ok_or_else(|| raise(py, &missing()))
    }

    /// A change that has arrived, without waiting and without asking the store; ``None`` without one.
    fn _take(&self, py: Python<'_>) -> PyResult<Option<Change>> {
        let inner = self.0.get(py, "watch")?;
        let taken: Result<_, Error> = py.detach(|| Ok(inner.lock()?.pending.pop_front()));
        Ok(taken.or_raise(py)?.map(Change::from))
    }

    /// Ends the iteration, also of a thread that waits.
    fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Whether ``close()`` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
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
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let (kind, text) = match &self.0.filter {
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
    #[pyo3(signature = (prefix=None, *, name=None, existing=false))]
    fn watch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::prefix)] prefix: Option<String>,
        #[pyo3(from_py_with = args::name)] name: Option<String>,
        #[pyo3(from_py_with = args::existing)] existing: bool,
    ) -> PyResult<Watch> {
        let filter = name_filter(py, prefix, name)?;
        let store = self.store(py)?;
        let state = py.detach(|| WatchState::new(&*store, &filter, existing)).or_raise(py)?;
        let inner = WatchInner { store, filter, state: Mutex::new(state), closed: AtomicBool::new(false) };
        Ok(Watch(ProcessLocal::new(Arc::new(inner))))
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
