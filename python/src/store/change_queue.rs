//! `ChangeQueue`: one thread waits for many watches, for asyncio.

use super::backend::Backend;
use super::store::Store;
use super::watch::{Watch, WatchInner};
use super::watch_state::Watched as Watching;
use crate::errors::raise;
use crate::interrupt::seconds;
use crate::process::ProcessLocal;
use cotensor::{Error, LocalStore};
use cotensor_client::Watched;
use cotensor_core::sync::{lock, wait_timeout};
use cotensor_store::{ChangePosition, ChangesFuture, NameChanges};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

/// Watches of one store, each under a number that the caller chooses. One thread waits for all of them.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct ChangeQueue {
    waits: ProcessLocal<Waits>,
    /// The watches that wait, and the position that each waits from.
    watches: Mutex<HashMap<u64, (Arc<WatchInner>, ChangePosition)>>,
}

enum Waits {
    Client(cotensor_client::ChangeQueue),
    Local(LocalWaits),
}

/// Waits for the changes of a store of this process.
struct LocalWaits {
    store: Arc<LocalStore>,
    state: Mutex<HashMap<u64, LocalWait>>,
    woken: Arc<Woken>,
}

struct LocalWait {
    future: ChangesFuture,
    end: Option<Instant>,
}

/// The numbers of the waits to poll.
#[derive(Default)]
struct Woken {
    numbers: Mutex<Vec<u64>>,
    arrived: Condvar,
}

struct WakeOne {
    number: u64,
    woken: Arc<Woken>,
}

impl Wake for WakeOne {
    fn wake(self: Arc<Self>) {
        lock(&self.woken.numbers).push(self.number);
        self.woken.arrived.notify_all();
    }
}

impl LocalWaits {
    fn add(&self, number: u64, watched: &Watching, since: ChangePosition, wait: Duration) {
        let future = match watched.every {
            Some(_) => self.store.await_versions(since),
            None => self.store.watch_names(watched.filter.clone(), Some(since)),
        };
        lock(&self.state).insert(number, LocalWait { future, end: Instant::now().checked_add(wait) });
        // The waiting thread polls it for the first time.
        Arc::new(WakeOne { number, woken: Arc::clone(&self.woken) }).wake();
    }

    /// Polls the waits that were woken, and takes those that are ready or have ended.
    fn poll(&self) -> Vec<(u64, NameChanges)> {
        let (mut numbers, now) = (std::mem::take(&mut *lock(&self.woken.numbers)), Instant::now());
        let mut state = lock(&self.state);
        numbers
            .extend(state.iter().filter(|(_, wait)| wait.end.is_some_and(|end| end <= now)).map(|(number, _)| *number));
        let mut done = Vec::new();
        for number in numbers {
            let Some(wait) = state.get_mut(&number) else { continue };
            let waker = Arc::new(WakeOne { number, woken: Arc::clone(&self.woken) }).into();
            let changes = match Pin::new(&mut wait.future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(changes) => changes,
                Poll::Pending if wait.end.is_some_and(|end| end <= now) => wait.future.nothing(),
                Poll::Pending => continue,
            };
            state.remove(&number);
            done.push((number, changes));
        }
        done
    }

    fn wait(&self, end: Instant) -> Vec<(u64, Result<NameChanges, Error>)> {
        loop {
            let done = self.poll();
            let next = lock(&self.state).values().filter_map(|wait| wait.end).min();
            let until = next.map_or(end, |next| next.min(end));
            let left = until.saturating_duration_since(Instant::now());
            if !done.is_empty() || (left.is_zero() && end <= Instant::now()) {
                return done.into_iter().map(|(number, changes)| (number, Ok(changes))).collect();
            }
            let numbers = lock(&self.woken.numbers);
            if numbers.is_empty() {
                drop(wait_timeout(&self.woken.arrived, numbers, left));
            }
        }
    }
}

#[pymethods]
impl ChangeQueue {
    #[new]
    fn new(py: Python<'_>, store: &Store) -> PyResult<Self> {
        let waits = match store.backend(py)? {
            Backend::Client(store) => Waits::Client(cotensor_client::ChangeQueue::new(store)),
            Backend::Local(store) => Waits::Local(LocalWaits { store, state: Mutex::default(), woken: Arc::default() }),
        };
        Ok(Self { waits: ProcessLocal::new(waits), watches: Mutex::default() })
    }

    /// The number of watches that ``wait()`` has not returned.
    #[getter]
    fn count(&self) -> usize {
        lock(&self.watches).len()
    }

    /// Adds a watch of the same store. ``wait()`` returns its number when it has changes, or after ``timeout`` seconds.
    #[pyo3(signature = (number, watch, timeout=None))]
    fn add(&self, py: Python<'_>, number: u64, watch: &Watch, timeout: Option<f64>) -> PyResult<()> {
        let (waits, wait) = (self.waits.get(py, "change queue")?, seconds(py, timeout)?.unwrap_or(Duration::MAX));
        let inner = Arc::clone(watch.inner());
        py.detach(|| {
            let since = inner.position();
            lock(&self.watches).insert(number, (Arc::clone(&inner), since));
            match waits {
                Waits::Client(queue) => {
                    let watched = match (&inner.watched().every, &inner.watched().filter) {
                        (Some(every), _) => Watched::Every(every.clone()),
                        (None, filter) => Watched::Newest(filter.clone()),
                    };
                    queue.add(number, watched, since, wait);
                }
                Waits::Local(waits) => waits.add(number, inner.watched(), since, wait),
            }
        });
        Ok(())
    }

    /// Removes a watch. ``wait()`` does not return it.
    fn remove(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        lock(&self.watches).remove(&number);
        match self.waits.get(py, "change queue")? {
            Waits::Client(queue) => queue.remove(number),
            Waits::Local(waits) => drop(lock(&waits.state).remove(&number)),
        }
        Ok(())
    }

    /// Waits for at most ``timeout`` seconds until some have changes. Returns the number of each with ``None`` and ``False``,
    /// or with an exception and ``True``. The changes are in the watches.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(u64, Py<PyAny>, bool)>> {
        let (waits, timeout) =
            (self.waits.get(py, "change queue")?, seconds(py, Some(timeout))?.unwrap_or(Duration::MAX));
        let end = Instant::now() + timeout.min(Duration::from_secs(3600));
        let outcomes = py.detach(|| {
            let done = match waits {
                Waits::Client(queue) => queue.wait(end),
                Waits::Local(waits) => waits.wait(end),
            };
            let taken = done.into_iter().filter_map(|(number, outcome)| {
                let (inner, since) = lock(&self.watches).remove(&number)?;
                Some((number, outcome.and_then(|changes| inner.apply(since, changes))))
            });
            taken.collect::<Vec<_>>()
        });
        let each = |(number, outcome): (u64, Result<(), Error>)| match outcome {
            Ok(()) => (number, py.None(), false),
            Err(error) => (number, raise(py, &error).into_value(py).into_any(), true),
        };
        Ok(outcomes.into_iter().map(each).collect())
    }
}
