//! References to objects of other processes.

use super::codec::Codec;
use super::managed_object::{ATTRIBUTE, NAMES};
use super::markers::METHOD;
use crate::errors::{OrRaise, raise};
use crate::functions::call::Call;
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_functions::{Arguments, CallError, Deadline, Scope, Value};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A reference to an object in its provider's process. Read its public attributes and call its public methods like any
/// object's. As an argument of a function of that provider, it becomes the object itself. The reference ends with ``release()``, with a ``with``
/// block, or when dropped.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct RemoteObject {
    object: Mutex<Option<ProcessLocal<Arc<cotensor_functions::RemoteObject>>>>,
    codec: ProcessLocal<Codec>,
    /// The attributes that are known to be methods.
    methods: Mutex<HashSet<String>>,
}

impl RemoteObject {
    pub(super) fn new(object: Arc<cotensor_functions::RemoteObject>, codec: Codec) -> Self {
        let (object, codec) = (Mutex::new(Some(ProcessLocal::new(object))), ProcessLocal::new(codec));
        Self { object, codec, methods: Mutex::default() }
    }

    /// # Errors
    /// `Conflict` after its release and in a forked child.
    pub(super) fn remote(&self, py: Python<'_>) -> PyResult<Arc<cotensor_functions::RemoteObject>> {
        // Unlocked before `raise`, which runs Python code.
        let found = match &*lock(&self.object) {
            Some(object) if object.is_ours() => Ok(Arc::clone(object)),
            Some(_) => Err("this object belongs to the parent process"),
            None => Err("this object was already released"),
        };
        found.map_err(|why| raise(py, &Error::new(ErrorKind::Conflict, why)))
    }
}

/// Calls a method and waits for its result.
///
/// # Errors
/// The exception of a signal handler.
fn call(
    py: Python<'_>,
    object: &cotensor_functions::RemoteObject,
    method: &str,
    arguments: &Arguments,
    deadline: Deadline,
) -> PyResult<Result<Value, CallError>> {
    let (signals, scope) = (SignalCheck::default(), Call::current_scope(py)?);
    let call = || object.call_while(method, arguments, deadline, &|| signals.none_raised());
    let outcome = py.detach(|| Scope::within(scope, call));
    signals.result()?;
    Ok(outcome)
}

#[pymethods]
impl RemoteObject {
    /// The epoch of its provider.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.remote(py)?.epoch())
    }

    /// The number of this reference at its provider.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.remote(py)?.number())
    }

    /// Calls a method, for at most ``timeout`` seconds.
    #[pyo3(signature = (method, args=None, kwargs=None, *, timeout=None))]
    fn call_method(
        &self,
        py: Python<'_>,
        method: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let object = self.remote(py)?;
        let deadline = Deadline::from(seconds(py, timeout)?);
        let none = PyTuple::empty(py);
        let codec = self.codec.writing_to(object.allocator());
        let arguments = codec.arguments(args.unwrap_or(none.as_any()), kwargs)?;
        let outcome = call(py, &object, method, &arguments, deadline)?;
        self.codec.decode(py, outcome.or_raise(py)?)
    }

    #[pyo3(signature = (method, *args, **kwargs))]
    fn _invoke(
        &self,
        py: Python<'_>,
        method: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        self.call_method(py, method, Some(args.as_any()), kwargs, None)
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        self.call_method(py, "__call__", Some(args.as_any()), kwargs, None)
    }

    fn __getattr__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if name.starts_with('_') {
            return Err(PyAttributeError::new_err(format!("a remote object has no attribute {name:?}")));
        }
        let (py, this) = (slf.py(), slf.get());
        let methods = || lock(&this.methods);
        let method = || py.import("functools")?.getattr("partial")?.call1((slf.getattr("_invoke")?, name));
        if methods().contains(name) {
            return method();
        }
        let arguments = Arguments::new().arg(name);
        match call(py, &*this.remote(py)?, ATTRIBUTE, &arguments, Deadline::from(None))? {
            Ok(Value::Map(marked)) if marked.contains_key(METHOD) => {}
            // An object of another language has methods only.
            Err(CallError::Failed(failure)) if failure.kind == "no_method" => {}
            outcome => return Ok(this.codec.decode(py, outcome.or_raise(py)?)?.into_bound(py)),
        }
        methods().insert(name.to_owned());
        method()
    }

    fn __dir__<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let object = py.import("builtins")?.getattr("object")?;
        let mut names: Vec<_> = object.call_method1("__dir__", (slf,))?.try_iter()?.collect::<PyResult<_>>()?;
        let remote =
            this.remote(py).and_then(|object| call(py, &object, NAMES, &Arguments::new(), Deadline::from(None)));
        // Completion works without them.
        if let Ok(Ok(remote)) = remote {
            names.extend(this.codec.decode(py, remote)?.bind(py).try_iter()?.collect::<PyResult<Vec<_>>>()?);
        }
        Ok(names)
    }

    /// Ends the reference. A second call raises :class:`ConflictError`.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let object = self.remote(py)?;
        drop(lock(&self.object).take());
        py.detach(|| object.release()).or_raise(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        // If the provider ended, its objects ended with it.
        match self.remote(py) {
            Ok(_) => self.release(py).or_else(|error| {
                let conflict = py.import("cotensor.errors")?.getattr("ConflictError")?;
                if error.matches(py, conflict)? { Ok(()) } else { Err(error) }
            }),
            Err(_) => Ok(()),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.remote(py) {
            Ok(object) => format!("<RemoteObject {} of provider {:x}>", object.number(), object.epoch()),
            Err(_) => "<RemoteObject, released>".to_owned(),
        }
    }
}
