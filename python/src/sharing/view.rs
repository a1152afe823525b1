//! A window on a shared tensor.

use super::ours;
use super::written::{Shown, shown};
use crate::arrays::as_array;
use crate::errors::{OrRaise, raise};
use crate::process::Own;
use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};

/// A window on a :class:`SharedTensor`: the same memory. It keeps the tensor alive, as a model that acquired it does, until it
/// and every array made of it are gone, or ``release()`` is called.
///
/// What the producer writes before publishing is seen through it. Its arrays are read-only.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct SharedTensorView {
    view: Mutex<Option<Shown>>,
}

impl SharedTensorView {
    pub(super) fn new(view: cotensor_sharing::SharedTensorView) -> Self {
        Self { view: Mutex::new(Some(Arc::new(Own::new(view)))) }
    }

    fn view(&self, py: Python<'_>) -> PyResult<Shown> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let view = view.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this view was released")))?;
        ours(py, "view", &view)?;
        Ok(view)
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
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.view(py)?.layout().dtype().name())
    }

    /// Bytes of its elements.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.view(py)?.layout().size_bytes())
    }

    /// A window on the window: ``size`` elements from ``offset`` on, along each dimension.
    fn create_view(&self, py: Python<'_>, name: &str, offset: Vec<usize>, size: Vec<usize>) -> PyResult<Self> {
        let view = self.view(py)?;
        py.detach(|| view.create_view(name, &offset, &size)).or_raise(py).map(Self::new)
    }

    /// A numpy array on the shared memory, read-only: no copy.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shown(py, &self.view(py)?, false)?.call_method0("numpy")
    }

    /// A torch tensor on the shared memory. Once the tensor is published, what is written in place is the writer's own.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shown(py, &self.view(py)?, false)?.call_method0("torch")
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

    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(&self, py: Python<'py>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        shown(py, &self.view(py)?, false)?.call_method("__dlpack__", (), options)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (crate::dlpack::CPU, 0)
    }

    /// Lets the tensor go now, as far as this view is concerned. Arrays that were made of it keep it.
    fn release(&self, py: Python<'_>) {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).take();
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
