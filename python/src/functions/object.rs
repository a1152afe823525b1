//! Objects that stay with their provider.

use super::ending::{call_afresh, with_python};
use super::failure::{failure, raised};
use super::place::Place;
use super::value::Terms;
use crate::errors::raise;
use crate::interrupt::{Patience, seconds};
use crate::process::Own;
use cotensor::{Error, ErrorKind};
use cotensor_functions::{Arguments, Context, Deadline, Failure, Managed, Object, Value};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};

/// A Python object of this process that others have references to. They call its public methods, and itself.
pub(super) struct Live {
    object: Py<PyAny>,
    terms: Terms,
}

impl Live {
    pub(super) fn new(object: Py<PyAny>, terms: Terms) -> Self {
        Self { object, terms }
    }

    pub(super) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.object.clone_ref(py)
    }
}

impl Managed for Live {
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        // Nothing that Python keeps to itself, nor a way from a method to anything else.
        let public = method == "__call__" || (!method.starts_with('_') && !method.contains('.'));
        with_python(|py| {
            let called = || -> PyResult<Option<Value>> {
                let object = self.object.bind(py);
                let found = if public { object.getattr_opt(method)? } else { None };
                let Some(found) = found.filter(|found| found.is_callable()) else { return Ok(None) };
                let (args, kwargs) = opened(py, &self.terms, arguments)?;
                let result = call_afresh(&found, &args, &kwargs)?;
                // A model's `eval()` or `to()` gives the model: one more reference to it.
                if result.is(&self.object) {
                    return Ok(Some(Value::Object(Object::new(Live::new(result.unbind(), self.terms.clone())))));
                }
                self.terms.writing_to(context.outlet().clone()).value(&result, &Place::whole("result")).map(Some)
            };
            match called() {
                Ok(Some(value)) => Ok(value),
                Ok(None) => Err(Failure::no_method(method)),
                Err(error) => Err(failure(py, &error)),
            }
        })
    }
}

/// Arguments as a function of Python's gets them.
pub(super) fn opened<'py>(
    py: Python<'py>,
    terms: &Terms,
    arguments: &Arguments,
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    let args = arguments.args.iter().map(|value| terms.open(py, value.clone())).collect::<PyResult<Vec<_>>>()?;
    let kwargs = PyDict::new(py);
    for (name, value) in &arguments.kwargs {
        kwargs.set_item(name, terms.open(py, value.clone())?)?;
    }
    Ok((PyTuple::new(py, args)?, kwargs))
}

/// A reference to an object that lives with its provider: its public methods are called as any object's. As an argument to a
/// function of that provider it is the object itself. Given back when dropped, by ``release()``, or by leaving a ``with`` block.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct RemoteObject {
    object: Mutex<Option<Own<Arc<cotensor_functions::RemoteObject>>>>,
    terms: Own<Terms>,
}

impl RemoteObject {
    pub(super) fn new(object: Arc<cotensor_functions::RemoteObject>, terms: Terms) -> Self {
        Self { object: Mutex::new(Some(Own::new(object))), terms: Own::new(terms) }
    }

    /// The reference, unless it was given back or is another process's.
    pub(super) fn remote(&self, py: Python<'_>) -> PyResult<Arc<cotensor_functions::RemoteObject>> {
        // Unlocked before an exception is made, which runs Python.
        let found = match &*self.object.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(object) if object.is_ours() => Ok(Arc::clone(object)),
            Some(_) => Err("this object belongs to the process that this one was forked from"),
            None => Err("this object was given back already"),
        };
        found.map_err(|why| raise(py, &Error::new(ErrorKind::Conflict, why)))
    }
}

#[pymethods]
impl RemoteObject {
    /// Which life of its provider it belongs to.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.remote(py)?.epoch())
    }

    /// Its number among the references that this process has of that provider.
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
        let terms = self.terms.writing_to(object.outlet());
        let arguments = terms.arguments(args.unwrap_or(none.as_any()), kwargs)?;
        let patience = Patience::default();
        let outcome = py.detach(|| object.call_while(method, &arguments, deadline, &|| patience.goes_on()));
        patience.check()?;
        let value = outcome.map_err(|error| raised(py, error))?;
        self.terms.open(py, value)
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
            return Err(PyAttributeError::new_err(format!("a remote object has no {name:?}")));
        }
        let partial = slf.py().import("functools")?.getattr("partial")?;
        partial.call1((slf.getattr("_invoke")?, name))
    }

    /// Gives the object back; twice is an error.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let object = self.remote(py)?;
        drop(self.object.lock().unwrap_or_else(PoisonError::into_inner).take());
        py.detach(|| object.release()).map_err(|error| raised(py, error))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        // Its provider may be gone, and the object with it.
        match self.remote(py) {
            Ok(_) => self.release(py).or_else(|error| {
                let gone = py.import("cotensor.errors")?.getattr("ConflictError")?;
                if error.matches(py, gone)? { Ok(()) } else { Err(error) }
            }),
            Err(_) => Ok(()),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.remote(py) {
            Ok(object) => format!("<RemoteObject {} of provider {:x}>", object.number(), object.epoch()),
            Err(_) => "<RemoteObject, given back>".to_owned(),
        }
    }
}
