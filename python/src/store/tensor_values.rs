//! The values of a tensor: as a number, as a tensor of another device or dtype, as an own copy.

use super::item::item;
use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use crate::export::operators;
use crate::export::private_pages::PrivatePages;
use crate::held_lease::HeldLease;
use cotensor::{Error, LocalStore, Store};
use cotensor_memory::LocalMemory;
use cotensor_store::{CopyReason, TensorSpec, TensorStore};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::Arc;

/// The size of the largest element, of complex128.
const ELEMENT_BYTES_MAX: usize = 16;

#[pymethods]
impl Tensor {
    /// The value of a tensor of one element, as a Python number.
    fn item(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.layout.len() != 1 {
            let message =
                format!("a tensor of {} elements is not one number: take one with an index", self.layout.len());
            return Err(raise(py, &Error::invalid(message)));
        }
        let held = self.held(py)?;
        let (start, dtype) = (self.layout.offset_bytes(), self.layout.dtype());
        let mut element = [0; ELEMENT_BYTES_MAX];
        let element = &mut element[..dtype.size_bytes()];
        py.detach(|| held.lease().segment().read_at(start, element)).or_raise(py)?;
        item(py, dtype, element)
    }

    /// numpy's rule: one element is true unless it is zero; several have no truth.
    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        operators::truth(slf)
    }

    /// Iterates over the first dimension: a view for each index.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let builtins = slf.py().import("builtins")?;
        let indices = builtins.call_method1("range", (slf.len()?,))?;
        builtins.call_method1("map", (slf.getattr("__getitem__")?, indices))
    }

    /// Iterates over the first dimension from its end.
    fn __reversed__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let builtins = slf.py().import("builtins")?;
        let indices = builtins.call_method1("range", (slf.len()?,))?;
        builtins.call_method1("map", (slf.getattr("__getitem__")?, builtins.call_method1("reversed", (indices,))?))
    }

    /// ``bytes(tensor)``: as :meth:`tobytes`.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.tobytes(py)
    }

    /// The same published elements with a lease of their own. What this object's arrays wrote in place is not in it.
    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::part(PrivatePages::new(self.held(py)?), self.layout.clone()))
    }

    /// As ``copy.copy``: published elements do not change, so that no copy is needed.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.__copy__(py)
    }

    /// ``tensor.torch().to(…)``: a torch tensor of another device or dtype. torch copies only if it needs to.
    #[pyo3(signature = (*args, **kwargs))]
    fn to<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.torch(py)?.call_method("to", args, kwargs)
    }

    /// An own copy in host memory of this process, without a lease: it stays when the store is closed, the tensor removed or the daemon
    /// stopped. The copy is counted. The budget of the store does not count its memory.
    pub(super) fn detach(&self, py: Python<'_>) -> PyResult<Self> {
        let held = self.held(py)?;
        let lease = held.lease();
        let spec = lease.spec();
        let members = spec.members.clone().filter(|_| self.is_whole(&held));
        let plain = TensorSpec::new(spec.name, self.layout.dtype(), self.layout.shape());
        let spec = TensorSpec { members, kind: spec.kind, producer: spec.producer, metadata: spec.metadata, ..plain };
        let copy = self.copied(py)?;
        let store = LocalStore::builder().small().memory(Arc::new(LocalMemory::default())).build();
        let lease = py.detach(|| {
            let mut reservation = store.reserve_private(spec, &store.holder(&lease.holder()))?;
            let len = self.layout.size_bytes();
            // SAFETY: `copied` allocates `len` bytes, and `copy` owns them.
            let bytes = unsafe { std::slice::from_raw_parts(copy.address().as_ptr(), len) };
            reservation.write(bytes, CopyReason::PrivateCopy)?;
            reservation.publish()
        });
        let lease = lease.or_raise(py)?;
        let layout = lease.layout().clone();
        Ok(Self::part(PrivatePages::new(HeldLease::new(lease, store as Arc<dyn Store>)), layout))
    }
}
