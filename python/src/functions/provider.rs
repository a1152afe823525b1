//! Functions of this process that other processes call.

use super::call::Call;
use super::codec::codec::Codec;
use super::codec::managed_object::ManagedObject;
use super::codec::path::ValuePath;
use super::codec::tensor_format::TensorFormat;
use super::shutdown::{call_in_new_context, with_python};
use crate::errors::{OrRaise, failure, raise};
use crate::interrupt::seconds;
use crate::process::ProcessLocal;
use crate::store::store::Store;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_functions::{Arguments, Cache, Concurrency, Context, Execution, Failure, Limits, Object, Options, Value};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Provides functions of this process by name until ``close()``. Each call runs on one of ``workers`` threads.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Provider {
    provider: Mutex<Option<ProcessLocal<Arc<cotensor_functions::Provider>>>>,
    store: Py<Store>,
    tensors: TensorFormat,
    pickle: bool,
    invoke: Option<Arc<Py<PyAny>>>,
}

impl Provider {
    fn provider(&self, py: Python<'_>) -> PyResult<Arc<cotensor_functions::Provider>> {
        // Unlocked before `raise`, which runs Python code.
        let found = match &*lock(&self.provider) {
            Some(provider) if provider.is_ours() => Ok(Arc::clone(provider)),
            Some(_) => Err("this provider belongs to the parent process"),
            None => Err("this provider is closed"),
        };
        found.map_err(|why| raise(py, &Error::new(ErrorKind::Conflict, why)))
    }
}

#[pymethods]
impl Provider {
    /// With ``invoke``, methods of objects are called by this function of the method, its :class:`Call`, its arguments and its
    /// named arguments. Functions of a provider ``beside`` another one of this process accept the other's objects.
    #[new]
    #[pyo3(signature = (store, *, workers=None, tasks_max=None, task_ttl=None, waiting_max=None, tensors="auto", allow_pickle=false, invoke=None, beside=None))]
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
        invoke: Option<Py<PyAny>>,
        beside: Option<&Bound<'_, Self>>,
    ) -> PyResult<Self> {
        let mut limits = Limits::default();
        if workers == Some(0) {
            return Err(raise(py, &Error::invalid("a provider needs at least one worker").in_field("workers")));
        }
        limits.workers = workers.unwrap_or(limits.workers);
        limits.tasks_max = tasks_max.unwrap_or(limits.tasks_max);
        limits.waiting_max = waiting_max.unwrap_or(limits.waiting_max);
        limits.task_ttl = seconds(py, task_ttl)?.unwrap_or(limits.task_ttl);
        let client = store.get().client_store(py, "functions of other processes")?;
        let beside = beside.map(|other| other.get().provider(py)).transpose()?;
        let started = py.detach(|| {
            let builder = cotensor_functions::Provider::builder(client).limits(limits);
            beside.into_iter().fold(builder, |builder, other| builder.beside(&other)).start()
        });
        let provider = Mutex::new(Some(ProcessLocal::new(Arc::new(started.or_raise(py)?))));
        let (tensors, invoke) = (TensorFormat::named(py, tensors)?, invoke.map(Arc::new));
        Ok(Self { provider, store, tensors, pickle: allow_pickle, invoke })
    }

    /// Provides a function under a name.
    ///
    /// ``execution`` is ``direct`` or ``task``, ``concurrency`` is ``parallel`` or ``serialized``. With
    /// ``singleflight``, concurrent equal calls run once. ``cache_ttl`` (seconds) and ``cache_capacity`` (results)
    /// cache results for later equal calls. With ``managed``, the result stays in this process and callers get a
    /// reference. With ``with_call``, the function gets its :class:`Call` as the keyword argument ``$call``. With ``replace``, it
    /// takes the place of a function of this provider that has the name.
    #[pyo3(signature = (name, function, *, summary="", execution="direct", concurrency="parallel", singleflight=false, cache_ttl=None, cache_capacity=1024, managed=false, timeout=None, with_call=false, replace=false))]
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
        replace: bool,
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
            // A managed result becomes an object below, as a Python value.
            managed: false,
            timeout: seconds(py, timeout)?,
        };
        let client = self.store.get().client_store(py, "functions of other processes")?;
        let (tensors, pickle, invoke) = (self.tensors, self.pickle, self.invoke.clone());
        let holder = cotensor::TensorStore::holder(&*client, name);
        let name_of_results = format!("result of {name}");
        let codec = Codec {
            allocator: client.into(),
            holder,
            name: name_of_results,
            tensors,
            pickle,
            is_provider: true,
            invoke,
        };
        let run = move |arguments: &Arguments, context: &Context| -> Result<Value, Failure> {
            let codec = Codec { holder: context.holder().clone(), ..codec.writing_to(context.allocator().clone()) };
            with_python(|py| {
                let called = || -> PyResult<Value> {
                    let (args, kwargs) = codec.decode_arguments(py, arguments)?;
                    if with_call {
                        let call = Call::new(context);
                        kwargs.set_item("$call", call)?;
                    }
                    let result = call_in_new_context(function.bind(py), &args, &kwargs)?;
                    if managed {
                        // The object outlives the caller and its connection arena.
                        let codec = codec.writing_to(Arc::clone(context.store()).into());
                        return Ok(Value::Object(Object::new(ManagedObject::new(result.unbind(), codec))));
                    }
                    codec.encode(&result, &ValuePath::named("result"))
                };
                called().map_err(|error| failure(py, &error))
            })
        };
        py.detach(|| if replace { provider.replace(name, options, run) } else { provider.add(name, options, run) })
            .or_raise(py)
    }

    /// Withdraws a function. Running calls continue.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let provider = self.provider(py)?;
        py.detach(|| provider.remove(name)).or_raise(py)
    }

    /// The number that identifies this start of the provider.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.provider(py)?.epoch())
    }

    /// The number of connected callers.
    #[getter]
    fn callers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.provider(py)?.callers())
    }

    /// Whether ``close()`` was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.provider).is_none()
    }

    /// Withdraws all functions and closes the connections of callers.
    fn close(&self, py: Python<'_>) {
        let provider = lock(&self.provider).take();
        py.detach(|| drop(provider));
    }
}
