//! A store as a mapping of names to tensors, and many tensors at once.

use super::holder::holder as holder_of;
use super::store::Store;
use super::tensor::Tensor;
use crate::args::{self, check_default, or_default};
use crate::errors::{OrRaise, raise};
use crate::import::source::SourceArray;
use crate::import::value::Value;
use cotensor::Error;
use cotensor_store::{Holder, Reservation, Retention, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyMapping, PyTuple};
use std::sync::Arc;
use std::time::Duration;

/// The most tensors that `put_many` publishes in one round trip: as many as the connection sends in one message.
const GROUP_MAX: usize = 512;
/// The most bytes of them. Their memory exists before the budget counts it.
const GROUP_BYTES_MAX: usize = 64 << 20;

#[pymethods]
impl Store {
    /// ``store[name]``: the newest version, leased. Raises :class:`NotFoundError`, a :class:`KeyError`.
    fn __getitem__(&self, py: Python<'_>, #[pyo3(from_py_with = args::name)] name: String) -> PyResult<Tensor> {
        let store = self.store(py)?;
        let holder = holder_of(py, &store, None);
        let lease = py.detach(|| store.get(&name, &holder)).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }

    /// ``store[name] = array``: publishes a version that stays until it is removed or evicted.
    fn __setitem__(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        array: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.put_kept(py, &name, array).map(drop)
    }

    /// ``del store[name]``: removes the name. Raises :class:`NotFoundError`, a :class:`KeyError`.
    fn __delitem__(&self, py: Python<'_>, #[pyo3(from_py_with = args::name)] name: String) -> PyResult<()> {
        let store = self.store(py)?;
        py.detach(|| store.remove(&name)).or_raise(py)
    }

    /// The number of names.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let store = self.store(py)?;
        py.detach(|| store.count_names("")).or_raise(py)
    }

    /// A store is true, also without names.
    fn __bool__(&self) -> bool {
        true
    }

    /// Iterates over the names that exist now, in order.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.names(py, None)?)?.try_iter()
    }

    /// Whether the name exists. Other values than strings are not names.
    fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(name) = name.extract::<String>() else { return Ok(false) };
        let store = self.store(py)?;
        Ok(py.detach(|| store.find_name(&name)).or_raise(py)?.is_some())
    }

    /// The names, as ``dict.keys()``.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("collections.abc")?.call_method1("KeysView", (slf,))
    }

    /// The newest version of every name, leased, as ``dict.values()``. An iteration leases them in turn, and leaves out
    /// a name that is removed before its turn.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("cotensor._mapping")?.call_method1("Values", (slf,))
    }

    /// The names and their tensors, as ``dict.items()``. An iteration leases them as that of :meth:`values` does.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("cotensor._mapping")?.call_method1("Items", (slf,))
    }

    /// Removes the name; returns the version that was the newest one, leased. If the name does not exist, returns
    /// ``default``, without which it raises :class:`NotFoundError`. Of several programs that pop a name, one gets it.
    #[pyo3(signature = (name, *default))]
    fn pop<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = args::name)] name: String,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        check_default(default)?;
        let store = slf.get().store(py)?;
        let holder = holder_of(py, &store, None);
        let pop = || loop {
            let lease = store.get(&name, &holder)?;
            match store.remove_version(&name, Some(lease.id())) {
                // Another program removed or replaced this version meanwhile.
                Err(error) if error.kind() == cotensor::ErrorKind::NotFound => {}
                removed => return removed.map(|()| lease),
            }
        };
        let popped = py.detach(pop);
        or_default(py, popped.map(|lease| Tensor::new(lease, store)), default)
    }

    /// Publishes every array of a mapping, or of pairs of name and array, as :meth:`put_many` does.
    #[pyo3(signature = (arrays=None, /, **named))]
    fn update(
        &self,
        py: Python<'_>,
        arrays: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let (none, no_names) = (PyDict::new(py), PyDict::new(py));
        let arguments = (arrays.unwrap_or(&none), named.unwrap_or(&no_names));
        let all = py.import("cotensor._mapping")?.call_method1("pairs", arguments)?;
        self.put_many(py, &all).map(drop)
    }

    /// The published names that start with ``prefix``, in order.
    #[pyo3(signature = (prefix=None))]
    fn names(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::prefix)] prefix: Option<String>,
    ) -> PyResult<Vec<String>> {
        let store = self.store(py)?;
        let named = py.detach(|| store.names(prefix.as_deref().unwrap_or_default())).or_raise(py)?;
        Ok(named.into_iter().map(|named| named.name).collect())
    }

    /// Leases the newest version of each name. Up to 512 lookups take one round trip, 64 of them one message. Returns a dict in the order of ``names``.
    /// Raises :class:`NotFoundError` if one is missing, and with ``missing_ok`` leaves it out.
    #[pyo3(signature = (names, *, missing_ok=false))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::names)] names: Vec<String>,
        #[pyo3(from_py_with = args::missing_ok)] missing_ok: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store(py)?;
        let holder = holder_of(py, &store, None);
        let found = PyDict::new(py);
        let leases = py.detach(|| store.get_each(&names, &holder));
        for (name, lease) in names.iter().zip(leases) {
            match lease {
                Err(error) if missing_ok && error.kind() == cotensor::ErrorKind::NotFound => {}
                lease => found.set_item(name, Tensor::new(lease.or_raise(py)?, store.clone()))?,
            }
        }
        Ok(found)
    }

    /// Publishes every array of a mapping under its name, as ``store[name] = array`` does. Returns the leased tensors by name.
    /// Every array is checked before the first one is published. The tensors are published in groups of up to 512 with 64 MiB in total, each in one round
    /// trip; if one fails, others of its group and of those before stay published.
    fn put_many<'py>(&self, py: Python<'py>, arrays: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let wrong = || raise(py, &Error::invalid("pass a mapping of strings to arrays").in_field("arrays"));
        let items = arrays.cast::<PyMapping>().map_err(|_| wrong())?.items()?;
        let mut sources = Vec::with_capacity(items.len());
        for item in items {
            let (name, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let name: String = name.extract().map_err(|_| wrong())?;
            let source = SourceArray::of(&array, &name)?;
            sources.push((name, Value::Host(source)));
        }
        let store = self.store(py)?;
        let put = PyDict::new(py);
        let mut sources = sources.into_iter().peekable();
        while sources.peek().is_some() {
            let (mut names, mut reservations, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some((name, source)) = sources.next_if(|(_, source)| {
                names.is_empty() || (names.len() < GROUP_MAX && bytes + source.len_bytes() <= GROUP_BYTES_MAX)
            }) {
                bytes += source.len_bytes();
                let (spec, holder) = kept(py, &store, &name, &source);
                reservations.push(filled(py, &*store, spec, &holder, source)?);
                names.push(name);
            }
            for (name, lease) in names.iter().zip(py.detach(|| Reservation::publish_each(reservations))) {
                put.set_item(name, Tensor::new(lease.or_raise(py)?, store.clone()))?;
            }
        }
        Ok(put)
    }
}

impl Store {
    /// As ``store[name] = array``.
    pub(super) fn put_kept(&self, py: Python<'_>, name: &str, array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let (source, backend) = (Value::of(array, false, &"array")?, self.backend(py)?);
        let store = backend.store();
        let (spec, holder) = kept(py, &store, name, &source);
        if let Some(lease) = source.publish_in_place(py, backend.client().as_deref(), &spec, &holder)? {
            return Ok(Tensor::new(lease, store));
        }
        let reservation = filled(py, &*store, spec, &holder, source)?;
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        Ok(Tensor::new(lease, store))
    }
}

/// The tensor of an array with the default options of `put`, and its holder.
fn kept(py: Python<'_>, store: &Arc<dyn cotensor::Store>, name: &str, source: &Value) -> (TensorSpec, Holder) {
    let holder = holder_of(py, store, None);
    let spec = TensorSpec {
        producer: holder.name().to_owned(),
        retention: Retention::Cached { recompute: Duration::ZERO },
        ..TensorSpec::new(name, source.dtype(), source.shape()).on(source.device())
    };
    (spec, holder)
}

/// An unpublished copy of an array.
fn filled(
    py: Python<'_>,
    store: &dyn cotensor::Store,
    spec: TensorSpec,
    holder: &Holder,
    source: Value,
) -> PyResult<Reservation> {
    let mut reservation = py.detach(|| store.reserve_to_fill(spec, holder)).or_raise(py)?;
    source.fill(py, &mut reservation)?;
    Ok(reservation)
}
