//! Python's values as those that cross processes, and back.

use super::object::{Live, RemoteObject};
use super::place::Place;
use crate::arrays::shown_by;
use crate::draft::fill;
use crate::errors::{OrRaise, raise};
use crate::modules::{Numpy, Torch};
use crate::source::Source;
use crate::tensor::Tensor;
use crate::window::Held;
use cotensor::{Error, ErrorKind, Lease, Store};
use cotensor_client::ClientStore;
use cotensor_functions::{Arguments, Entries, Object, Outlet, Value};
use cotensor_store::{Holder, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::Arc;

/// How deep values may be nested; one that contains itself is deeper.
const DEPTH_MAX: usize = 64;
/// Larger tensors of another connection are leased over this one, and not copied.
const COPIED_BYTES_MAX: usize = 1 << 18;
/// The name under which pickled bytes cross, alone in a map.
const PICKLE: &str = "$pickle";
/// The same for the entries of an `OrderedDict`, and for dtype and value of one of numpy's scalars.
const ORDERED: &str = "$ordered";
const SCALAR: &str = "$numpy";
/// Keys that no dict of a program's may have.
const OWN_KEYS: [&str; 3] = [PICKLE, ORDERED, SCALAR];

fn alone(name: &str, value: Value) -> Value {
    Value::Map(Entries::from([(name.to_owned(), value)]))
}

/// As what tensors come to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tensors {
    /// torch's where torch is imported, else numpy's where that is installed, else this package's.
    Auto,
    Torch,
    Numpy,
    Cotensor,
}

impl Tensors {
    pub(crate) fn named(py: Python<'_>, name: &str) -> PyResult<Self> {
        match name {
            "auto" => Ok(Tensors::Auto),
            "torch" => Ok(Tensors::Torch),
            "numpy" => Ok(Tensors::Numpy),
            "cotensor" => Ok(Tensors::Cotensor),
            _ => {
                let message = format!("{name:?} is none of auto, torch, numpy, cotensor");
                Err(raise(py, &Error::invalid(message).in_field("tensors")))
            }
        }
    }
}

/// One end's way with values.
#[derive(Clone)]
pub(crate) struct Terms {
    /// Where new tensors go.
    pub(crate) outlet: Outlet,
    pub(crate) holder: Holder,
    /// What new tensors are called.
    pub(crate) name: String,
    pub(crate) tensors: Tensors,
    /// Whether what is no value crosses as a pickle, and pickles are opened.
    pub(crate) pickle: bool,
    /// Whether this is a provider, which keeps torch's modules and gives references to them.
    pub(crate) keeps: bool,
}

impl Terms {
    pub(crate) fn store(&self) -> &Arc<ClientStore> {
        self.outlet.store()
    }

    /// The same, where new tensors go to `outlet`.
    pub(crate) fn writing_to(&self, outlet: Outlet) -> Self {
        Self { outlet, ..self.clone() }
    }

    /// Positional and named arguments.
    pub(crate) fn arguments(&self, args: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Arguments> {
        let mut arguments = Arguments::new();
        for (position, value) in args.try_iter()?.enumerate() {
            arguments.args.push(self.value(&value?, &Place::argument(position))?);
        }
        for (name, value) in kwargs.into_iter().flatten() {
            let name: String = name.extract()?;
            let value = self.value(&value, &Place::whole(&name))?;
            arguments.kwargs.insert(name, value);
        }
        Ok(arguments)
    }

    /// A value that crosses. Tensors are put into the store unless they are there already: one copy then, counted.
    pub(crate) fn value(&self, value: &Bound<'_, PyAny>, place: &Place<'_>) -> PyResult<Value> {
        let py = value.py();
        let refused = |message: String| raise(py, &Error::invalid(message).in_field(place.to_string()));
        if place.depth > DEPTH_MAX {
            return Err(refused(format!("nested deeper than {DEPTH_MAX} levels, or containing itself")));
        }
        if value.is_none() {
            Ok(Value::Null)
        } else if let Ok(value) = value.cast::<PyBool>() {
            Ok(Value::Bool(value.is_true()))
        } else if value.is_exact_instance_of::<PyInt>() {
            let number = value.extract().map_err(|_| refused("an integer of more than 64 bits".to_owned()))?;
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
            Ok(Value::Tuple(self.values(values.iter(), place)?))
        } else if let Ok(values) = value.cast_exact::<PyList>() {
            Ok(Value::List(self.values(values.iter(), place)?))
        } else if let Ok(values) = value.cast_exact::<PyDict>() {
            Ok(Value::Map(self.entries(values, place)?))
        } else if let Ok(object) = value.cast::<RemoteObject>() {
            Ok(Value::Remote(object.get().remote(py)?))
        } else if value.hasattr("__dlpack__")? || value.hasattr("__array_interface__")? {
            self.array(value, place)
        } else {
            self.derived(value, place)
        }
    }

    fn entries(&self, values: &Bound<'_, PyDict>, place: &Place<'_>) -> PyResult<Entries> {
        let refused = |message: String| raise(values.py(), &Error::invalid(message).in_field(place.to_string()));
        let mut entries = Entries::new();
        for (name, value) in values.iter() {
            let Ok(name) = name.extract::<String>() else {
                return Err(refused("a dict with keys that are no strings".to_owned()));
            };
            if OWN_KEYS.contains(&name.as_str()) {
                return Err(refused(format!("{name:?} is no key of a dict that crosses")));
            }
            let value = self.value(&value, &place.key(&name))?;
            entries.insert(name, value);
        }
        Ok(entries)
    }

    /// A value of a class that is derived from one of Python's own. As that one it would lose its type.
    fn derived(&self, value: &Bound<'_, PyAny>, place: &Place<'_>) -> PyResult<Value> {
        let py = value.py();
        let class = value.get_type();
        if let Ok(values) = value.cast::<PyDict>()
            && class.is(py.import("collections")?.getattr("OrderedDict")?)
        {
            return Ok(alone(ORDERED, Value::Map(self.entries(values, place)?)));
        }
        if let Ok(values) = value.cast::<PyTuple>()
            && Torch::imported(py)?.is_some_and(|torch| torch.is_size(value))
        {
            return Ok(Value::Tuple(self.values(values.iter(), place)?));
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
                    "{} would lose its type on the way to another process: pass {base}(…) of it, or allow pickles on both \
                     sides (allow_pickle=True)",
                    class.fully_qualified_name()?
                );
                Err(raise(py, &Error::unsupported(message).in_field(place.to_string())))
            }
            _ => self.other(value, place),
        }
    }

    fn values<'py>(&self, values: impl Iterator<Item = Bound<'py, PyAny>>, place: &Place<'_>) -> PyResult<Vec<Value>> {
        values.enumerate().map(|(at, value)| self.value(&value, &place.at(at))).collect()
    }

    fn array(&self, array: &Bound<'_, PyAny>, place: &Place<'_>) -> PyResult<Value> {
        let py = array.py();
        // numpy's scalars are numbers.
        if let Some(numpy) = Numpy::imported(py)?
            && array.is_instance(numpy.generic.bind(py))?
        {
            let item = array.call_method0("item")?;
            // Some of numpy's numbers have no counterpart in Python.
            if item.get_type().is(array.get_type()) {
                return self.other(array, place);
            }
            let item = self.value(&item, place)?;
            // A result keeps its type. An argument is a number, for functions of any language.
            if !self.keeps {
                return Ok(item);
            }
            let dtype: String = array.getattr("dtype")?.getattr("str")?.extract()?;
            return Ok(alone(SCALAR, Value::Tuple(vec![dtype.into(), item])));
        }
        if array.is_instance_of::<Tensor>()
            && let Some(held) = shown_by(py, array)?
            && let Some(value) = self.held(py, &held)?
        {
            return Ok(value);
        }
        let source = Source::of(array, place)?;
        if let Some(held) = source.tensor()
            && let Some(value) = self.held(py, &held)?
        {
            return Ok(value);
        }
        let spec = TensorSpec {
            producer: self.holder.name().to_owned(),
            ..TensorSpec::new(self.name.as_str(), source.dtype, &source.shape)
        };
        let mut reservation = py.detach(|| self.outlet.reserve(spec, &self.holder)).or_raise(py)?;
        fill(py, &mut reservation, &source)?;
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        Ok(Value::Tensor(Arc::new(lease)))
    }

    /// A tensor that is in the daemon's store already. What came over another connection is asked for, unless copying it takes
    /// less time than that.
    fn held(&self, py: Python<'_>, held: &Held) -> PyResult<Option<Value>> {
        let lease = held.lease();
        let lease = if self.store().holds(lease) {
            Some(lease.lease_for(&self.holder).or_raise(py)?)
        } else if lease.layout().size_bytes() > COPIED_BYTES_MAX {
            py.detach(|| self.store().join(lease, &self.holder))
        } else {
            None
        };
        Ok(lease.map(|lease| Value::Tensor(Arc::new(lease))))
    }

    fn other(&self, value: &Bound<'_, PyAny>, place: &Place<'_>) -> PyResult<Value> {
        let py = value.py();
        let name = value.get_type().fully_qualified_name()?.to_string();
        if !self.pickle {
            if self.keeps
                && let Some(torch) = Torch::imported(py)?
                && torch.is_module(value)?
            {
                // It outlives the caller, and what was lent to him.
                let terms = self.writing_to(Arc::clone(self.store()).into());
                return Ok(Value::Object(Object::new(Live::new(value.clone().unbind(), terms))));
            }
            let message = format!(
                "{name} does not cross processes: numbers, texts, bytes, lists, tuples, dicts and tensors do. A provider \
                 can keep it and give out a reference (managed=True); the weights of a model can be published and attached \
                 (cotensor.torch); or both sides can allow pickles (allow_pickle=True)"
            );
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        let pickled = py.import("pickle")?.call_method1("dumps", (value,))?.extract::<Vec<u8>>()?;
        Ok(alone(PICKLE, Value::Bytes(pickled)))
    }

    /// What came from the other end.
    pub(crate) fn open(&self, py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
        Ok(match value {
            Value::Null => py.None(),
            Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
            Value::Int(number) => number.into_pyobject(py)?.into_any().unbind(),
            Value::Float(number) => number.into_pyobject(py)?.into_any().unbind(),
            Value::String(text) => text.into_pyobject(py)?.into_any().unbind(),
            Value::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Value::List(values) => PyList::new(py, self.open_all(py, values)?)?.into_any().unbind(),
            Value::Tuple(values) => PyTuple::new(py, self.open_all(py, values)?)?.into_any().unbind(),
            Value::Map(mut values) => {
                if values.len() == 1
                    && let Some(special) = self.special(py, &mut values)
                {
                    return special;
                }
                let made = PyDict::new(py);
                for (name, value) in values {
                    made.set_item(name, self.open(py, value)?)?;
                }
                made.into_any().unbind()
            }
            Value::Tensor(lease) => self.tensor(py, &lease)?,
            Value::Object(object) => match object.get::<Live>() {
                Some(live) => live.object(py),
                None => return Err(raise(py, &Error::unsupported("an object that is not Python's"))),
            },
            Value::Remote(object) => Py::new(py, RemoteObject::new(object, self.clone()))?.into_any(),
        })
    }

    fn open_all(&self, py: Python<'_>, values: Vec<Value>) -> PyResult<Vec<Py<PyAny>>> {
        values.into_iter().map(|value| self.open(py, value)).collect()
    }

    /// What stands alone in a map, under one of [`OWN_KEYS`].
    fn special(&self, py: Python<'_>, values: &mut Entries) -> Option<PyResult<Py<PyAny>>> {
        let (name, value) = values.pop()?;
        match (name.as_str(), value) {
            (PICKLE, Value::Bytes(bytes)) => Some(self.unpickle(py, &bytes)),
            (ORDERED, value @ Value::Map(_)) => Some((|| {
                let dict = self.open(py, value)?;
                Ok(py.import("collections")?.getattr("OrderedDict")?.call1((dict,))?.unbind())
            })()),
            (SCALAR, Value::Tuple(pair)) => Some((|| {
                let [Value::String(dtype), item] = <[Value; 2]>::try_from(pair)
                    .map_err(|_| raise(py, &Error::corrupt("a number of numpy's has a dtype and a value")))?
                else {
                    return Err(raise(py, &Error::corrupt("a number of numpy's has a dtype and a value")));
                };
                let item = self.open(py, item)?;
                // Where numpy is missing, the number alone.
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
            let message =
                "the other side sent a pickle, which can run anything: it is opened with allow_pickle=True only";
            return Err(raise(py, &Error::new(ErrorKind::Refused, message)));
        }
        Ok(py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))?.unbind())
    }

    fn tensor(&self, py: Python<'_>, lease: &Lease) -> PyResult<Py<PyAny>> {
        let lease = lease.lease_for(&self.holder).or_raise(py)?;
        let tensor = Bound::new(py, Tensor::new(lease, Arc::clone(self.store()) as Arc<dyn Store>))?;
        let made = match self.tensors {
            Tensors::Auto if Torch::imported(py)?.is_some() => Tensor::torch(&tensor),
            Tensors::Auto if py.import("numpy").is_ok() => Tensor::numpy(&tensor),
            Tensors::Torch => Tensor::torch(&tensor),
            Tensors::Numpy => Tensor::numpy(&tensor),
            Tensors::Auto | Tensors::Cotensor => return Ok(tensor.into_any().unbind()),
        };
        made.map(Bound::unbind)
    }
}
