//! A view of a shared tensor.

use super::expose::{Elements, HeldView};
use crate::dlpack::abi::HOST;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::DlpackRequest;
use crate::export::dtype::dtype_object;
use crate::export::numpy::as_array;
use crate::export::operators;
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex};

/// A view of a :class:`SharedTensor`: a part of the same memory. Like a model that acquired the tensor, it keeps the
/// tensor alive until ``release()``, or until the view and every array made from it are dropped.
///
/// It shows what the producer writes before publishing. Its arrays are read-only.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct SharedTensorView {
    view: Mutex<Option<HeldView>>,
}

operators::array_operators!(SharedTensorView, contains = operators::contains);

impl SharedTensorView {
    pub(super) fn new(view: cotensor_sharing::SharedTensorView) -> Self {
        Self { view: Mutex::new(Some(Arc::new(ProcessLocal::new(view)))) }
    }

    fn view(&self, py: Python<'_>) -> PyResult<HeldView> {
        let view = lock(&self.view).clone();
        let view = view.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this view was released")))?;
        view.get(py, "view")?;
        Ok(view)
    }

    fn elements(&self, py: Python<'_>) -> PyResult<Elements> {
        Elements::of(py, &self.view(py)?, false)
    }
}

#[pymethods]
impl SharedTensorView {
    /// Its name.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.name().to_owned())
    }

    /// The name of the tensor.
    #[getter]
    fn parent_name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.parent_name().to_owned())
    }

    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view(py)?.shape())
    }

    /// The element type's name.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.view(py)?.layout().dtype())
    }

    /// Size of the elements in bytes.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.layout().size_bytes())
    }

    /// A view of this view: ``size`` elements from ``offset`` along each dimension.
    fn create_view(&self, py: Python<'_>, name: &str, offset: Vec<usize>, size: Vec<usize>) -> PyResult<Self> {
        let view = self.view(py)?;
        py.detach(|| view.create_view(name, &offset, &size)).or_raise(py).map(Self::new)
    }

    /// A read-only numpy array on the shared memory, without a copy.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.elements(py)?.numpy(py)
    }

    /// A torch tensor on the shared memory, without a copy. After publishing, writes in place are private to this
    /// process.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.elements(py)?.torch(py)
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        as_array(&self.numpy(py)?, dtype, copy)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let request = DlpackRequest::new(stream, max_version, dl_device, copy)?;
        self.elements(py)?.dlpack(py, &request)
    }

    /// Programs test whether they were given one: it is true, also where its elements are zero.
    fn __bool__(&self) -> bool {
        true
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        HOST
    }

    /// Releases the tensor now. Arrays made from this view keep it.
    fn release(&self, py: Python<'_>) {
        let view = lock(&self.view).take();
        py.detach(|| drop(view));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.view(py) {
            Ok(view) => {
                let (name, parent, layout) = (view.name(), view.parent_name(), view.layout());
                let (dtype, shape, bytes) = (layout.dtype(), layout.shape(), layout.size_bytes());
                format!("<SharedTensorView {name:?} of {parent:?}, {dtype}{shape:?}, {bytes} bytes>")
            }
            Err(_) => "<SharedTensorView, released>".to_owned(),
        }
    }
}
