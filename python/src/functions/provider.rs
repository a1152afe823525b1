//! Functions of this process that others call.

use super::ending::{call_afresh, with_python};
use super::failure::failure;
use super::object::{Live, opened};
use super::place::Place;
use super::value::{Tensors, Terms};
use crate::errors::{OrRaise, raise};
use crate::interrupt::seconds;
use crate::process::Own;
use crate::store::Store;
use cotensor::{Error, ErrorKind};
use cotensor_client::functions::{
    Arguments, Cache, Concurrency, Context, Execution, Failure, Limits, Object, Options, Value,
};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Functions of this process, offered by name until ``close()``. Each call runs on one of ``workers`` threads.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Provider {
    provider: Mutex<Option<Own<Arc<cotensor_client::functions::Provider>>>>,
    store: Py<Store>,
    tensors: Tensors,
    pickle: bool,
}

/// One run of a function: who wants it, and whether anybody still does.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Call {
    /// The function's name.
    #[pyo3(get)]
    function: String,
    /// Who calls it, for people.
    #[pyo3(get)]
    client: String,
    cancelled: Arc<AtomicBool>,
}

#[pymethods]
impl Call {
    /// Whether nobody wants the result any more: long functions ask now and then, and return.
    #[getter]
    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

impl Provider {
    fn provider(&self, py: Python<'_>) -> PyResult<Arc<cotensor_client::functions::Provider>> {
        // Unlocked before an exception is made, which runs Python.
        let found = match &*self.provider.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(provider) if provider.is_ours() => Ok(Arc::clone(provider)),
            Some(_) => Err("this provider belongs to the process that this one was forked from"),
            None => Err("this provider is closed"),
        };
        found.map_err(|why| raise(py, &Error::new(ErrorKind::Conflict, why)))
    }
}

#[pymethods]
impl Provider {
    #[new]
    #[pyo3(signature = (store, *, workers=None, tasks_max=None, task_ttl=None, waiting_max=None, tensors="auto", allow_pickle=false))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        workers: Option<usize>,
        tasks_max: Option<usize>,
        task_ttl: Option<f64>,
        waiting_max: Option<usize>,
        tensors: &str,
        allow_pickle: bool,
    ) -> PyResult<Self> {
        let mut limits = Limits::default();
        if workers == Some(0) {
            return Err(raise(py, &Error::invalid("at least one is needed").in_field("workers")));
        }
        limits.workers = workers.unwrap_or(limits.workers);
        limits.tasks_max = tasks_max.unwrap_or(limits.tasks_max);
        limits.waiting_max = waiting_max.unwrap_or(limits.waiting_max);
        limits.task_ttl = seconds(py, task_ttl)?.unwrap_or(limits.task_ttl);
        let client = store.get().client_store(py)?;
        let started = py.detach(|| cotensor_client::functions::Provider::builder(client).limits(limits).start());
        let provider = Mutex::new(Some(Own::new(Arc::new(started.or_raise(py)?))));
        Ok(Self { provider, store, tensors: Tensors::named(py, tensors)?, pickle: allow_pickle })
    }

    /// Offers a function under a name.
    ///
    /// ``execution`` is ``direct`` or ``task``, ``concurrency`` is ``parallel`` or ``serialized``. With ``singleflight`` equal
    /// calls at the same time run once; with ``cache_ttl`` (seconds) and ``cache_capacity`` results serve equal calls later.
    /// With ``managed`` the result stays here, and callers get a reference. With ``with_call`` the function is told
    /// of its :class:`Call` under the name ``$call``: who calls, and whether anybody still waits.
    #[pyo3(signature = (name, function, *, summary="", execution="direct", concurrency="parallel", singleflight=false, cache_ttl=None, cache_capacity=1024, managed=false, timeout=None, with_call=false))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn add(
        &self,
        py: Python<'_>,
        name: &str,
        function: Py<PyAny>,
        summary: &str,
        execution: &str,
        concurrency: &str,
        singleflight: bool,
        cache_ttl: Option<f64>,
        cache_capacity: usize,
        managed: bool,
        timeout: Option<f64>,
        with_call: bool,
    ) -> PyResult<()> {
        let provider = self.provider(py)?;
        let unknown =
            |field: &str, value: &str| raise(py, &Error::invalid(format!("{value:?} is unknown")).in_field(field));
        let options = Options {
            summary: summary.to_owned(),
            execution: match execution {
                "direct" => Execution::Direct,
                "task" => Execution::Task,
                other => return Err(unknown("execution", other)),
            },
            concurrency: match concurrency {
                "parallel" => Concurrency::Parallel,
                "serialized" => Concurrency::Serialized,
                other => return Err(unknown("concurrency", other)),
            },
            singleflight,
            cache: cache_ttl
                .map(|ttl| Ok::<_, PyErr>(seconds(py, Some(ttl))?.unwrap_or(Duration::MAX)))
                .transpose()?
                .map(|ttl| Cache { ttl, capacity: cache_capacity }),
            // What is kept is made an object below, where it is Python's still.
            managed: false,
            timeout: seconds(py, timeout)?,
        };
        let client = self.store.get().client_store(py)?;
        let (tensors, pickle) = (self.tensors, self.pickle);
        let holder = cotensor::TensorStore::holder(&*client, name);
        let terms =
            Terms { outlet: client.into(), holder, name: format!("result of {name}"), tensors, pickle, keeps: true };
        let run = move |arguments: &Arguments, context: &Context| -> Result<Value, Failure> {
            let terms = Terms { holder: context.holder().clone(), ..terms.writing_to(context.outlet().clone()) };
            with_python(|py| {
                let called = || -> PyResult<Value> {
                    let (args, kwargs) = opened(py, &terms, arguments)?;
                    if with_call {
                        kwargs.set_item(
                            "$call",
                            Call {
                                function: context.function().to_owned(),
                                client: context.client().to_owned(),
                                cancelled: context.cancellation(),
                            },
                        )?;
                    }
                    let result = call_afresh(function.bind(py), &args, &kwargs)?;
                    if managed {
                        // It outlives the caller, and what was lent to him.
                        let terms = terms.writing_to(Arc::clone(context.store()).into());
                        return Ok(Value::Object(Object::new(Live::new(result.unbind(), terms))));
                    }
                    terms.value(&result, &Place::whole("result"))
                };
                called().map_err(|error| failure(py, &error))
            })
        };
        py.detach(|| provider.add(name, options, run)).or_raise(py)
    }

    /// Takes a function back. What runs runs on.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let provider = self.provider(py)?;
        py.detach(|| provider.remove(name)).or_raise(py)
    }

    /// Tells this life of the provider from others.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.provider(py)?.epoch())
    }

    /// Callers that are connected now.
    #[getter]
    fn callers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.provider(py)?.callers())
    }

    /// Whether ``close()`` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes everything back and ends the connections of callers.
    fn close(&self, py: Python<'_>) {
        let provider = self.provider.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(provider));
    }
}
