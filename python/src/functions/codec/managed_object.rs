//! Objects of this process that other processes reference.

use super::codec::Codec;
use super::markers::{METHOD, marked};
use super::path::ValuePath;
use crate::errors::failure;
use crate::functions::call::Call;
use crate::functions::shutdown::{call_in_new_context, with_python};
use crate::imports::Torch;
use cotensor_functions::{Arguments, Context, Failure, Managed, Object, Value};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// A Python object of this process that other processes reference. They can call the object and its public methods.
pub(crate) struct ManagedObject {
    object: Py<PyAny>,
    codec: Codec,
}

impl ManagedObject {
    pub(crate) fn new(object: Py<PyAny>, codec: Codec) -> Self {
        Self { object, codec }
    }

    pub(crate) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.object.clone_ref(py)
    }
}

/// Asks for an attribute: its value, or the mark of a method.
pub(crate) const ATTRIBUTE: &str = "__getattribute__";
/// Asks for the names of the attributes.
pub(crate) const NAMES: &str = "__dir__";

/// Whether callers see an attribute of this name. No private names, and no path from a method to other objects.
fn is_public(name: &str) -> bool {
    !name.starts_with('_') && !name.contains('.')
}

/// One call of a method.
struct MethodCall<'a, 'py> {
    py: Python<'py>,
    arguments: &'a Arguments,
    context: &'a Context,
}

impl ManagedObject {
    fn call_method(&self, method: &str, call: &MethodCall<'_, '_>) -> PyResult<Option<Value>> {
        let object = self.object.bind(call.py);
        let found = if method == "__call__" || is_public(method) { object.getattr_opt(method)? } else { None };
        let Some(found) = found.filter(|found| found.is_callable()) else { return Ok(None) };
        let (args, kwargs) = self.codec.decode_arguments(call.py, call.arguments)?;
        self.invoke(&found, &args, &kwargs, call).and_then(|result| self.encode(result, call)).map(Some)
    }

    fn attribute(&self, call: &MethodCall<'_, '_>) -> PyResult<Option<Value>> {
        let py = call.py;
        let name = match call.arguments.args.first() {
            Some(Value::String(name)) if is_public(name) => name,
            _ => return Ok(None),
        };
        // A property runs code, as a method does.
        let getattr = py.import("builtins")?.getattr("getattr")?;
        let args = PyTuple::new(py, [self.object.bind(py).clone(), PyString::new(py, name).into_any()])?;
        let value = self.invoke(&getattr, &args, &PyDict::new(py), call)?;
        let is_module = Torch::imported(py)?.map_or(Ok(false), |torch| torch.is_module(&value))?;
        if value.is_callable() && !is_module {
            Ok(Some(marked(METHOD, Value::Null)))
        } else {
            self.encode(value, call).map(Some)
        }
    }

    fn names(&self, call: &MethodCall<'_, '_>) -> PyResult<Option<Value>> {
        let names = self.object.bind(call.py).dir()?;
        let names = names.iter().map(|name| name.extract::<String>()).collect::<PyResult<Vec<_>>>()?;
        Ok(Some(Value::List(names.into_iter().filter(|name| is_public(name)).map(Value::String).collect())))
    }

    fn invoke<'py>(
        &self,
        method: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        call: &MethodCall<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = call.py;
        let Some(invoke) = &self.codec.invoke else { return call_in_new_context(method, args, kwargs) };
        let this_call = Py::new(py, Call::new(call.context))?;
        let args = (method, this_call, args, kwargs).into_pyobject(py)?;
        call_in_new_context(invoke.bind(py), &args, &PyDict::new(py))
    }

    fn encode(&self, result: Bound<'_, PyAny>, call: &MethodCall<'_, '_>) -> PyResult<Value> {
        // A method such as `eval()` returns its object: one more reference to it.
        if result.is(&self.object) {
            let same = ManagedObject::new(result.unbind(), self.codec.clone());
            return Ok(Value::Object(Object::new(same)));
        }
        let codec = self.codec.writing_to(call.context.allocator().clone());
        codec.encode(&result, &ValuePath::named("result"))
    }
}

impl Managed for ManagedObject {
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        with_python(|py| {
            let call = MethodCall { py, arguments, context };
            let called = match method {
                ATTRIBUTE => self.attribute(&call),
                NAMES => self.names(&call),
                _ => self.call_method(method, &call),
            };
            match called {
                Ok(Some(value)) => Ok(value),
                Ok(None) => Err(Failure::no_method(method)),
                Err(error) => Err(failure(py, &error)),
            }
        })
    }
}
