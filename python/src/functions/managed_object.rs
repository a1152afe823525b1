//! Objects of this process that other processes reference.

use super::codec::codec::Codec;
use super::codec::path::ValuePath;
use super::shutdown::{call_in_new_context, with_python};
use crate::errors::failure;
use cotensor_functions::{Arguments, Context, Failure, Managed, Object, Value};
use pyo3::prelude::*;

/// A Python object of this process that other processes reference. They can call the object and its public methods.
pub(super) struct ManagedObject {
    object: Py<PyAny>,
    codec: Codec,
}

impl ManagedObject {
    pub(super) fn new(object: Py<PyAny>, codec: Codec) -> Self {
        Self { object, codec }
    }

    pub(super) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.object.clone_ref(py)
    }
}

impl Managed for ManagedObject {
    fn call(&self, method: &str, arguments: &Arguments, context: &Context) -> Result<Value, Failure> {
        // No private names, and no path from a method to other objects.
        let is_public = method == "__call__" || (!method.starts_with('_') && !method.contains('.'));
        with_python(|py| {
            let called = || -> PyResult<Option<Value>> {
                let object = self.object.bind(py);
                let found = if is_public { object.getattr_opt(method)? } else { None };
                let Some(found) = found.filter(|found| found.is_callable()) else { return Ok(None) };
                let (args, kwargs) = self.codec.decode_arguments(py, arguments)?;
                let result = call_in_new_context(&found, &args, &kwargs)?;
                // A method such as `eval()` returns its object: one more reference to it.
                if result.is(&self.object) {
                    let same = ManagedObject::new(result.unbind(), self.codec.clone());
                    return Ok(Some(Value::Object(Object::new(same))));
                }
                let codec = self.codec.writing_to(context.allocator().clone());
                codec.encode(&result, &ValuePath::named("result")).map(Some)
            };
            match called() {
                Ok(Some(value)) => Ok(value),
                Ok(None) => Err(Failure::no_method(method)),
                Err(error) => Err(failure(py, &error)),
            }
        })
    }
}
