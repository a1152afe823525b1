//! Arrays on a shared tensor's memory.

use crate::arrays::{Kept, as_numpy};
use crate::dlpack::{self, Given};
use crate::errors::OrRaise;
use crate::modules::Torch;
use crate::process::Own;
use crate::tensor::{Tensor, check_dlpack, interface};
use crate::window::{Held, Pages};
use cotensor_core::Layout;
use cotensor_sharing::{Exposed, SharedTensorView};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// A view, for as long as something of Python's shows it.
pub(super) type Shown = Arc<Own<SharedTensorView>>;

/// What shows the bytes of a view now: the tensor once it is published, the producer's own memory before.
pub(super) fn shown<'py>(py: Python<'py>, view: &Shown, writable: bool) -> PyResult<Bound<'py, PyAny>> {
    let layout = view.layout().clone();
    // Waits while the tensor is being published.
    let exposed = py.detach(|| view.expose().map(Moved));
    match exposed.or_raise(py)?.0 {
        Exposed::Writable { start, keep } => {
            let keep = Arc::new(Keep { _view: Arc::clone(view), _address: keep });
            Ok(Bound::new(py, Written { start, layout, writable, keep })?.into_any())
        }
        Exposed::Published(lease) => {
            let held = Held::keeping(lease, Arc::clone(view.store()), Some(Arc::clone(view) as Kept));
            Ok(Bound::new(py, Tensor::over_part(Pages::new(held), layout))?.into_any())
        }
    }
}

/// From where it was waited for to where Python is.
struct Moved(Exposed);

// SAFETY: an address and what keeps it, neither of one thread's own.
unsafe impl Send for Moved {}

struct Keep {
    _view: Shown,
    _address: Option<Arc<dyn Any + Send + Sync>>,
}

/// Memory that its producer may still write.
#[pyclass(frozen, module = "cotensor")]
struct Written {
    start: NonNull<u8>,
    layout: Layout,
    /// Whether to offer it for writing.
    writable: bool,
    keep: Arc<Keep>,
}

// SAFETY: an address and what keeps it; who writes there answers for it, as with any array.
unsafe impl Send for Written {}
// SAFETY: as above.
unsafe impl Sync for Written {}

#[pymethods]
impl Written {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, &self.layout, self.start, !self.writable)
    }

    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        as_numpy(slf.as_any(), slf.get().layout.dtype())
    }

    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Torch::import(slf.py())?.from_dlpack.bind(slf.py()).call1((slf,))
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
        check_dlpack(stream, dl_device)?;
        if copy == Some(true) {
            let message = "what is being written is not copied: acquire the tensor first, or copy the array";
            return Err(pyo3::exceptions::PyBufferError::new_err(message));
        }
        let keep = Arc::clone(&self.keep) as Kept;
        Given::new(self.start, &self.layout, !self.writable, keep).into_capsule(py, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }
}
