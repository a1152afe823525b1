//! Values that crossed processes to Python values.

use super::codec::Codec;
use super::managed_object::ManagedObject;
use super::markers::{NUMPY_SCALAR, ORDERED_DICT, PICKLE};
use super::remote_object::RemoteObject;
use super::tensor_format::TensorFormat;
use crate::errors::{OrRaise, raise};
use crate::imports::Torch;
use crate::store::tensor::Tensor;
use cotensor::{Error, ErrorKind, Lease, Store};
use cotensor_functions::{Arguments, Entries, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::sync::Arc;

impl Codec {
    /// Decodes the arguments of a call: positional and named.
    pub(crate) fn decode_arguments<'py>(
        &self,
        py: Python<'py>,
        arguments: &Arguments,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let args = arguments.args.iter().map(|value| self.decode(py, value.clone())).collect::<PyResult<Vec<_>>>()?;
        let kwargs = PyDict::new(py);
        for (name, value) in &arguments.kwargs {
            kwargs.set_item(name, self.decode(py, value.clone())?)?;
        }
        Ok((PyTuple::new(py, args)?, kwargs))
    }

    /// Decodes a value.
    pub(crate) fn decode(&self, py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
        Ok(match value {
            Value::Null => py.None(),
            Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
            Value::Int(number) => number.into_pyobject(py)?.into_any().unbind(),
            Value::Float(number) => number.into_pyobject(py)?.into_any().unbind(),
            Value::String(text) => text.into_pyobject(py)?.into_any().unbind(),
            Value::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Value::List(values) => PyList::new(py, self.decode_all(py, values)?)?.into_any().unbind(),
            Value::Tuple(values) => PyTuple::new(py, self.decode_all(py, values)?)?.into_any().unbind(),
            Value::Map(mut values) => {
                if values.len() == 1
                    && let Some(marked) = self.marked(py, &mut values)
                {
                    return marked;
                }
                let made = PyDict::new(py);
                for (name, value) in values {
                    made.set_item(name, self.decode(py, value)?)?;
                }
                made.into_any().unbind()
            }
            Value::Tensor(lease) => self.tensor(py, &lease)?,
            Value::Object(object) => match object.get::<ManagedObject>() {
                Some(managed) => managed.object(py),
                None => return Err(raise(py, &Error::unsupported("an object of another language"))),
            },
            Value::Remote(object) => Py::new(py, RemoteObject::new(object, self.clone()))?.into_any(),
        })
    }

    fn decode_all(&self, py: Python<'_>, values: Vec<Value>) -> PyResult<Vec<Py<PyAny>>> {
        values.into_iter().map(|value| self.decode(py, value)).collect()
    }

    /// Decodes a map with one reserved key; other maps stay as they are.
    fn marked(&self, py: Python<'_>, values: &mut Entries) -> Option<PyResult<Py<PyAny>>> {
        let (name, value) = values.pop()?;
        match (name.as_str(), value) {
            (PICKLE, Value::Bytes(bytes)) => Some(self.unpickle(py, &bytes)),
            (ORDERED_DICT, value @ Value::Map(_)) => Some((|| {
                let dict = self.decode(py, value)?;
                Ok(py.import("collections")?.getattr("OrderedDict")?.call1((dict,))?.unbind())
            })()),
            (NUMPY_SCALAR, Value::Tuple(pair)) => Some((|| {
                let [Value::String(dtype), item] = <[Value; 2]>::try_from(pair)
                    .map_err(|_| raise(py, &Error::corrupt("a numpy scalar needs a dtype and a value")))?
                else {
                    return Err(raise(py, &Error::corrupt("a numpy scalar needs a dtype and a value")));
                };
                let item = self.decode(py, item)?;
                // Without numpy, the plain number.
                let Ok(numpy) = py.import("numpy") else { return Ok(item) };
                Ok(numpy.getattr("dtype")?.call1((dtype,))?.getattr("type")?.call1((item,))?.unbind())
            })()),
            (_, value) => {
                values.insert(name, value);
                None
            }
        }
    }

    fn unpickle(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
        if !self.pickle {
            let message = "the other side sent a pickle, which can run any code: allow_pickle=True opens it";
            return Err(raise(py, &Error::new(ErrorKind::Refused, message)));
        }
        Ok(py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))?.unbind())
    }

    fn tensor(&self, py: Python<'_>, lease: &Lease) -> PyResult<Py<PyAny>> {
        let lease = lease.lease_for(&self.holder).or_raise(py)?;
        let tensor = Tensor::new(lease, Arc::clone(self.store()) as Arc<dyn Store>);
        let decoded = match self.tensors {
            TensorFormat::Auto if Torch::imported(py)?.is_some() => tensor.torch(py),
            TensorFormat::Auto if py.import("numpy").is_ok() => tensor.numpy(py),
            TensorFormat::Torch => tensor.torch(py),
            TensorFormat::Numpy => tensor.numpy(py),
            TensorFormat::Auto | TensorFormat::Cotensor => Ok(Bound::new(py, tensor)?.into_any()),
        };
        decoded.map(Bound::unbind)
    }
}
