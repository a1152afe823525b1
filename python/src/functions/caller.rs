//! Calls of functions of other processes.

use super::call::Call;
use super::codec::codec::Codec;
use super::codec::tensor_format::TensorFormat;
use super::completion_queue::CompletionQueue;
use super::task::Task;
use crate::errors::{OrRaise, raise};
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use crate::store::holder::program;
use crate::store::report::report;
use crate::store::store::Store;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_functions::{Arguments, Deadline, Scope};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex};

/// The functions of all providers. The daemon looks a function up once; calls go to its provider directly.
///
/// ``tensors`` is the type of tensors in results: ``torch``, ``numpy``, ``cotensor``, or ``auto`` (torch's if torch is
/// imported, else numpy's). ``timeout`` in seconds is the default of calls.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Functions {
    store: Py<Store>,
    options: Options,
    connection: Mutex<ProcessLocal<Connection>>,
}

struct Options {
    tensors: TensorFormat,
    pickle: bool,
    timeout: Option<f64>,
}

struct Connection {
    functions: Arc<cotensor_functions::Functions>,
    codec: Codec,
}

impl Connection {
    fn new(py: Python<'_>, store: &Store, options: &Options) -> PyResult<Self> {
        let store = store.client_store(py, "functions of other processes")?;
        let name = program(py);
        let holder = cotensor::TensorStore::holder(&*store, &name);
        let codec = Codec {
            allocator: Arc::clone(&store).into(),
            holder,
            name: format!("arguments of {name}"),
            tensors: options.tensors,
            pickle: options.pickle,
            is_provider: false,
            invoke: None,
        };
        let functions = cotensor_functions::Functions::new(store);
        let functions = match seconds(py, options.timeout)? {
            Some(timeout) => functions.with_timeout(timeout),
            None => functions,
        };
        Ok(Self { functions: Arc::new(functions), codec })
    }
}

impl Functions {
    /// The connection of this process. A forked child connects anew.
    fn connection(&self, py: Python<'_>) -> PyResult<(Arc<cotensor_functions::Functions>, Codec)> {
        let lock = || lock(&self.connection);
        let ours = lock().is_ours();
        if !ours {
            // Without the lock: connecting runs Python code.
            let new = ProcessLocal::new(Connection::new(py, self.store.get(), &self.options)?);
            *lock() = new;
        }
        let connection = lock();
        Ok((Arc::clone(&connection.functions), connection.codec.clone()))
    }

    /// The connection, and the arguments in the memory of the function's provider.
    fn encode(
        &self,
        py: Python<'_>,
        name: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        deadline: &Deadline,
    ) -> PyResult<(Arc<cotensor_functions::Functions>, Codec, Arguments)> {
        let (functions, codec) = self.connection(py)?;
        let scope = Call::current_scope(py)?;
        let allocator = py.detach(|| Scope::within(scope, || functions.allocator(name, deadline))).or_raise(py)?;
        let none = PyTuple::empty(py);
        let arguments = codec.writing_to(allocator).arguments(args.unwrap_or(none.as_any()), kwargs)?;
        Ok((functions, codec, arguments))
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
        let options = Options { tensors: TensorFormat::named(py, tensors)?, pickle: allow_pickle, timeout };
        let connection = Mutex::new(ProcessLocal::new(Connection::new(py, store.get(), &options)?));
        Ok(Self { store, options, connection })
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
        let (functions, codec, arguments) = self.encode(py, name, args, kwargs, &deadline)?;
        let (signals, scope) = (SignalCheck::default(), Call::current_scope(py)?);
        let call = || functions.call_while(name, &arguments, deadline, &|| signals.none_raised());
        let outcome = py.detach(|| Scope::within(scope, call));
        signals.result()?;
        codec.decode(py, outcome.or_raise(py)?)
    }

    /// Submits a call as a task and returns without waiting. The task fails after ``timeout`` seconds.
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
        let lookup_deadline = Deadline::from(seconds(py, self.options.timeout)?);
        let (functions, codec, arguments) = self.encode(py, name, args, kwargs, &lookup_deadline)?;
        let submitted = py.detach(|| functions.submit_within(name, &arguments, timeout));
        Ok(Task::new(submitted.or_raise(py)?, codec))
    }

    /// A task of any client, by its number and the epoch of its provider.
    fn task(&self, py: Python<'_>, epoch: u64, number: u64) -> PyResult<Task> {
        let (functions, codec) = self.connection(py)?;
        let found = py.detach(|| functions.task(epoch, number));
        Ok(Task::new(found.or_raise(py)?, codec))
    }

    /// The completion queue of the provider of ``name``.
    fn completion_queue(&self, py: Python<'_>, name: &str) -> PyResult<CompletionQueue> {
        let (functions, codec) = self.connection(py)?;
        let queue = py.detach(|| functions.completion_queue(name)).or_raise(py)?;
        Ok(CompletionQueue::new(queue, codec))
    }

    /// The completion queue of the provider of ``task``.
    fn completion_queue_of(&self, py: Python<'_>, task: &Bound<'_, Task>) -> PyResult<CompletionQueue> {
        let (functions, codec) = self.connection(py)?;
        Ok(CompletionQueue::new(functions.completion_queue_of(task.get().task(py)?), codec))
    }

    /// The tasks of every provider as dicts, the newest first; with ``state``, those in that state.
    #[pyo3(signature = (state=None))]
    fn tasks<'py>(&self, py: Python<'py>, state: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let (functions, _) = self.connection(py)?;
        let unknown = |_| raise(py, &Error::invalid("unknown state of a task").in_field("state"));
        let state = state.map(|state| serde_json::from_value(state.into())).transpose().map_err(unknown)?;
        let tasks = py.detach(|| functions.tasks(state)).or_raise(py)?;
        report(py, || serde_json::to_string(&tasks))
    }

    /// The functions whose names start with ``prefix``, as dicts with their providers.
    #[pyo3(signature = (prefix=""))]
    fn list<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyAny>> {
        let (functions, _) = self.connection(py)?;
        let found = py.detach(|| functions.list(prefix)).or_raise(py)?;
        report(py, || serde_json::to_string(&found))
    }

    /// Whether a process provides a function of that name.
    fn provides(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let (functions, _) = self.connection(py)?;
        match py.detach(|| functions.describe(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|_| true).or_raise(py),
        }
    }

    /// The store of arguments and results.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }
}
