//! Python values to values that cross processes.

use super::codec::Codec;
use super::managed_object::ManagedObject;
use super::markers::{NUMPY_SCALAR, ORDERED_DICT, PICKLE, RESERVED_KEYS, marked};
use super::path::ValuePath;
use super::remote_object::RemoteObject;
use crate::errors::{OrRaise, raise};
use crate::export::dtype::is_dtype;
use crate::held_lease::HeldLease;
use crate::import::source::SourceArray;
use crate::imports::{Numpy, Torch};
use crate::store::lookup::lease_of;
use crate::store::tensor::Tensor;
use cotensor::Error;
use cotensor_functions::{Arguments, Entries, Object, Value};
use cotensor_store::TensorSpec;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::Arc;

/// The deepest nesting of a value. A value that contains itself exceeds it.
const DEPTH_MAX: usize = 64;
/// The largest tensor in bytes of another connection that is copied. Larger ones are leased over this connection.
const COPIED_BYTES_MAX: usize = 1 << 18;
/// The kinds of numpy scalars that equal a Python value: bool, integers, floats, complex numbers, bytes and text.
const PLAIN_KINDS: &str = "biufcSU";

impl Codec {
    /// Encodes positional and named arguments.
    pub(crate) fn arguments(&self, args: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Arguments> {
        let mut arguments = Arguments::new();
        for (position, value) in args.try_iter()?.enumerate() {
            arguments.args.push(self.encode(&value?, &ValuePath::argument(position))?);
        }
        for (name, value) in kwargs.into_iter().flatten() {
            let name: String = name.extract()?;
            let value = self.encode(&value, &ValuePath::named(&name))?;
            arguments.kwargs.insert(name, value);
        }
        Ok(arguments)
    }

    /// Encodes a value. A tensor that is not in the store is put there, with one counted copy.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` for values that do not cross, with `path` as the field.
    pub(crate) fn encode(&self, value: &Bound<'_, PyAny>, path: &ValuePath<'_>) -> PyResult<Value> {
        let py = value.py();
        let invalid = |message: String| raise(py, &Error::invalid(message).in_field(path.to_string()));
        if path.depth > DEPTH_MAX {
            return Err(invalid(format!("the value is nested deeper than {DEPTH_MAX} levels, or contains itself")));
        }
        if value.is_none() {
            Ok(Value::Null)
        } else if let Ok(value) = value.cast::<PyBool>() {
            Ok(Value::Bool(value.is_true()))
        } else if value.is_exact_instance_of::<PyInt>() {
            let number = value.extract().map_err(|_| invalid("the integer has more than 64 bits".to_owned()))?;
            Ok(Value::Int(number))
        } else if value.is_exact_instance_of::<PyFloat>() {
            Ok(Value::Float(value.extract()?))
        } else if value.is_exact_instance_of::<PyString>() {
            Ok(Value::String(value.extract()?))
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            Ok(Value::Bytes(bytes.as_bytes().to_vec()))
        } else if let Ok(bytes) = value.cast::<PyByteArray>() {
            Ok(Value::Bytes(bytes.to_vec()))
        } else if let Ok(values) = value.cast_exact::<PyTuple>() {
            Ok(Value::Tuple(self.values(values.iter(), path)?))
        } else if let Ok(values) = value.cast_exact::<PyList>() {
            Ok(Value::List(self.values(values.iter(), path)?))
        } else if let Ok(values) = value.cast_exact::<PyDict>() {
            Ok(Value::Map(self.entries(values, path)?))
        } else if let Ok(object) = value.cast::<RemoteObject>() {
            Ok(Value::Remote(object.get().remote(py)?))
        } else if value.hasattr("__dlpack__")? || value.hasattr("__array_interface__")? {
            self.array(value, path)
        } else {
            self.derived(value, path)
        }
    }

    fn entries(&self, values: &Bound<'_, PyDict>, path: &ValuePath<'_>) -> PyResult<Entries> {
        let invalid = |message: String| raise(values.py(), &Error::invalid(message).in_field(path.to_string()));
        let mut entries = Entries::new();
        for (name, value) in values.iter() {
            let Ok(name) = name.extract::<String>() else {
                return Err(invalid("a dict has keys that are not strings".to_owned()));
            };
            if RESERVED_KEYS.contains(&name.as_str()) {
                return Err(invalid(format!("{name:?} is a reserved key")));
            }
            let value = self.encode(&value, &path.key(&name))?;
            entries.insert(name, value);
        }
        Ok(entries)
    }

    /// Encodes an instance of a subclass of a built-in type. As the built-in type it would lose its type.
    fn derived(&self, value: &Bound<'_, PyAny>, path: &ValuePath<'_>) -> PyResult<Value> {
        let py = value.py();
        let class = value.get_type();
        if let Ok(values) = value.cast::<PyDict>()
            && class.is(py.import("collections")?.getattr("OrderedDict")?)
        {
            return Ok(marked(ORDERED_DICT, Value::Map(self.entries(values, path)?)));
        }
        if let Ok(values) = value.cast::<PyTuple>()
            && Torch::imported(py)?.is_some_and(|torch| torch.is_size(value))
        {
            return Ok(Value::Tuple(self.values(values.iter(), path)?));
        }
        if is_dtype(value)? {
            return Ok(Value::String(value.extract()?));
        }
        let base = [
            (value.is_instance_of::<PyInt>(), "int"),
            (value.is_instance_of::<PyFloat>(), "float"),
            (value.is_instance_of::<PyString>(), "str"),
            (value.is_instance_of::<PyBytes>(), "bytes"),
            (value.is_instance_of::<PyTuple>(), "tuple"),
            (value.is_instance_of::<PyList>(), "list"),
            (value.is_instance_of::<PyDict>(), "dict"),
        ];
        match base.into_iter().find(|(derived, _)| *derived) {
            Some((_, base)) if !self.pickle => {
                let message = format!(
                    "{} would lose its type in another process: pass {base}(…), or allow pickles on both \
                     sides (allow_pickle=True)",
                    class.fully_qualified_name()?
                );
                Err(raise(py, &Error::unsupported(message).in_field(path.to_string())))
            }
            _ => self.other(value, path),
        }
    }

    fn values<'py>(
        &self,
        values: impl Iterator<Item = Bound<'py, PyAny>>,
        path: &ValuePath<'_>,
    ) -> PyResult<Vec<Value>> {
        values.enumerate().map(|(at, value)| self.encode(&value, &path.at(at))).collect()
    }

    fn array(&self, array: &Bound<'_, PyAny>, path: &ValuePath<'_>) -> PyResult<Value> {
        let py = array.py();
        // A numpy scalar is a number.
        if let Some(numpy) = Numpy::imported(py)?
            && array.is_instance(numpy.generic.bind(py))?
        {
            let dtype = array.getattr("dtype")?;
            let (kind, item): (char, _) = (dtype.getattr("kind")?.extract()?, array.call_method0("item")?);
            // Dates, durations and records lose their meaning as Python values, and some numbers have no Python type.
            if !PLAIN_KINDS.contains(kind) || item.get_type().is(array.get_type()) {
                return self.other(array, path);
            }
            let item = self.encode(&item, path)?;
            // A result keeps its numpy type. An argument becomes a number, for functions of any language.
            if !self.is_provider {
                return Ok(item);
            }
            let dtype: String = dtype.getattr("str")?.extract()?;
            return Ok(marked(NUMPY_SCALAR, Value::Tuple(vec![dtype.into(), item])));
        }
        if array.is_instance_of::<Tensor>()
            && let Some(held) = lease_of(py, array)?
            && let Some(value) = self.held(py, &held)?
        {
            return Ok(value);
        }
        let source = SourceArray::of(array, path)?;
        if let Some(held) = source.tensor()
            && let Some(value) = self.held(py, &held)?
        {
            return Ok(value);
        }
        // A group of another store: its bytes are copied, and its members stay.
        let members = match array.cast::<Tensor>() {
            Ok(tensor) => tensor.get().group(py)?,
            Err(_) => None,
        };
        let spec = TensorSpec {
            producer: self.holder.name().to_owned(),
            members,
            ..TensorSpec::new(self.name.as_str(), source.dtype, &source.shape)
        };
        let mut reservation = py.detach(|| self.allocator.reserve(spec, &self.holder)).or_raise(py)?;
        source.fill(py, &mut reservation)?;
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        Ok(Value::Tensor(Arc::new(lease)))
    }

    /// A tensor that is already in the daemon's store. For a large tensor or a group of another connection this leases
    /// it over this one; for another small tensor the copy is faster, so this returns `None`.
    fn held(&self, py: Python<'_>, held: &HeldLease) -> PyResult<Option<Value>> {
        let lease = held.lease();
        let lease = if self.store().holds(lease) {
            Some(lease.lease_for(&self.holder).or_raise(py)?)
        } else if lease.layout().size_bytes() > COPIED_BYTES_MAX || lease.members().is_some() {
            py.detach(|| self.store().join(lease, &self.holder))
        } else {
            None
        };
        Ok(lease.map(|lease| Value::Tensor(Arc::new(lease))))
    }

    fn other(&self, value: &Bound<'_, PyAny>, path: &ValuePath<'_>) -> PyResult<Value> {
        let py = value.py();
        let name = value.get_type().fully_qualified_name()?.to_string();
        if !self.pickle {
            if self.is_provider
                && let Some(torch) = Torch::imported(py)?
                && torch.is_module(value)?
            {
                // The object outlives the caller and its connection arena.
                let codec = self.writing_to(Arc::clone(self.store()).into());
                return Ok(Value::Object(Object::new(ManagedObject::new(value.clone().unbind(), codec))));
            }
            let message = format!(
                "{name} does not cross processes. Numbers, strings, bytes, lists, tuples, dicts and tensors do. \
                 Otherwise keep the object at the provider (managed=True), publish and attach a model's weights \
                 (cotensor.torch), or allow pickles on both sides (allow_pickle=True)"
            );
            return Err(raise(py, &Error::unsupported(message).in_field(path.to_string())));
        }
        let pickled = py.import("pickle")?.call_method1("dumps", (value,))?.extract::<Vec<u8>>()?;
        Ok(marked(PICKLE, Value::Bytes(pickled)))
    }
}
