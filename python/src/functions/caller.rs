//! Calling what others provide.

use super::failure::raised;
use super::pending::Pending;
use super::task::Task;
use super::value::{Tensors, Terms};
use crate::errors::{OrRaise, raise};
use crate::interrupt::{Patience, seconds};
use crate::process::Own;
use crate::store::{Store, program};
use cotensor::{Error, ErrorKind};
use cotensor_client::functions::{Arguments, Deadline};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};

/// The functions of all providers, as this process sees them. A function is looked up once; calls go to its provider directly.
///
/// ``tensors`` says as what tensors of results come: ``torch``, ``numpy``, ``cotensor``, or ``auto`` (torch's where torch is
/// imported, else numpy's). ``timeout`` is for calls that have none of their own, in seconds.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Functions {
    store: Py<Store>,
    options: Options,
    inner: Mutex<Own<Inner>>,
}

struct Options {
    tensors: Tensors,
    pickle: bool,
    timeout: Option<f64>,
}

struct Inner {
    functions: Arc<cotensor_client::functions::Functions>,
    terms: Terms,
}

impl Inner {
    fn new(py: Python<'_>, store: &Store, options: &Options) -> PyResult<Self> {
        let store = store.client_store(py)?;
        let name = program(py);
        let holder = cotensor::TensorStore::holder(&*store, &name);
        let terms = Terms {
            outlet: Arc::clone(&store).into(),
            holder,
            name: format!("arguments of {name}"),
            tensors: options.tensors,
            pickle: options.pickle,
            keeps: false,
        };
        let functions = cotensor_client::functions::Functions::new(store);
        let functions = match seconds(py, options.timeout)? {
            Some(timeout) => functions.with_timeout(timeout),
            None => functions,
        };
        Ok(Self { functions: Arc::new(functions), terms })
    }
}

impl Functions {
    /// Those of this process: a forked child connects anew.
    fn inner(&self, py: Python<'_>) -> PyResult<(Arc<cotensor_client::functions::Functions>, Terms)> {
        let lock = || self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = lock().is_ours();
        if !ours {
            // Made without the lock: that runs Python.
            let made = Own::new(Inner::new(py, self.store.get(), &self.options)?);
            *lock() = made;
        }
        let inner = lock();
        Ok((Arc::clone(&inner.functions), inner.terms.clone()))
    }

    fn prepare(
        &self,
        py: Python<'_>,
        name: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        deadline: &Deadline,
    ) -> PyResult<(Arc<cotensor_client::functions::Functions>, Terms, Arguments)> {
        let (functions, terms) = self.inner(py)?;
        let outlet = py.detach(|| functions.outlet(name, deadline)).or_raise(py)?;
        let none = PyTuple::empty(py);
        let arguments = terms.writing_to(outlet).arguments(args.unwrap_or(none.as_any()), kwargs)?;
        Ok((functions, terms, arguments))
    }
}

#[pymethods]
impl Functions {
    #[new]
    #[pyo3(signature = (store, *, tensors="auto", allow_pickle=false, timeout=None))]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        tensors: &str,
        allow_pickle: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        seconds(py, timeout)?;
        let options = Options { tensors: Tensors::named(py, tensors)?, pickle: allow_pickle, timeout };
        let inner = Mutex::new(Own::new(Inner::new(py, store.get(), &options)?));
        Ok(Self { store, options, inner })
    }

    /// Calls a function and waits for its result, for at most ``timeout`` seconds.
    #[pyo3(signature = (name, args=None, kwargs=None, *, timeout=None))]
    fn call(
        &self,
        py: Python<'_>,
        name: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let deadline = Deadline::from(seconds(py, timeout.or(self.options.timeout))?);
        let (functions, terms, arguments) = self.prepare(py, name, args, kwargs, &deadline)?;
        let patience = Patience::default();
        let outcome = py.detach(|| functions.call_while(name, &arguments, deadline, &|| patience.goes_on()));
        patience.check()?;
        let value = outcome.map_err(|error| raised(py, error))?;
        terms.open(py, value)
    }

    /// Has a function called, and does not wait; the task fails when it has not ended within ``timeout`` seconds.
    #[pyo3(signature = (name, args=None, kwargs=None, *, timeout=None))]
    fn submit(
        &self,
        py: Python<'_>,
        name: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Task> {
        let timeout = seconds(py, timeout)?;
        let looked_up = Deadline::from(seconds(py, self.options.timeout)?);
        let (functions, terms, arguments) = self.prepare(py, name, args, kwargs, &looked_up)?;
        let submitted = py.detach(|| functions.submit_within(name, &arguments, timeout));
        Ok(Task::new(submitted.map_err(|error| raised(py, error))?, terms))
    }

    /// A task that was submitted by anybody, by its number and the epoch of its provider.
    fn task(&self, py: Python<'_>, epoch: u64, number: u64) -> PyResult<Task> {
        let (functions, terms) = self.inner(py)?;
        let found = py.detach(|| functions.task(epoch, number));
        Ok(Task::new(found.map_err(|error| raised(py, error))?, terms))
    }

    /// What one thread waits for of the provider of a function: calls and tasks, whichever is done first.
    fn pending(&self, py: Python<'_>, name: &str) -> PyResult<Pending> {
        let (functions, terms) = self.inner(py)?;
        let pending = py.detach(|| functions.pending(name)).or_raise(py)?;
        Ok(Pending::new(pending, terms))
    }

    /// As ``pending()``, of a task's provider.
    fn pending_with(&self, py: Python<'_>, task: &Bound<'_, Task>) -> PyResult<Pending> {
        let (functions, terms) = self.inner(py)?;
        Ok(Pending::new(functions.pending_with(task.get().task(py)?), terms))
    }

    /// The tasks of every provider, the newest first: dicts. ``state`` is ``pending``, ``running``, …
    #[pyo3(signature = (state=None))]
    fn tasks<'py>(&self, py: Python<'py>, state: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let (functions, _) = self.inner(py)?;
        let wrong = |_| raise(py, &Error::invalid("no state of a task").in_field("state"));
        let state = state.map(|state| serde_json::from_value(state.into())).transpose().map_err(wrong)?;
        let tasks = py.detach(|| functions.tasks(state)).or_raise(py)?;
        crate::store::report(py, || serde_json::to_string(&tasks))
    }

    /// The functions whose names start with ``prefix``, each with who provides it: dicts.
    #[pyo3(signature = (prefix=""))]
    fn list<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyAny>> {
        let (functions, _) = self.inner(py)?;
        let found = py.detach(|| functions.list(prefix)).or_raise(py)?;
        crate::store::report(py, || serde_json::to_string(&found))
    }

    /// Whether somebody provides a function of that name.
    fn provides(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let (functions, _) = self.inner(py)?;
        match py.detach(|| functions.describe(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|_| true).or_raise(py),
        }
    }

    /// The store that arguments and results are in.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }
}
