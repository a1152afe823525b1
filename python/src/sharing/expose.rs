//! The current memory of a shared tensor: the producer's until it is published, the published tensor's afterwards.

use crate::errors::OrRaise;
use crate::export::buffer::{Buffer, DlpackRequest, KeepAlive};
use crate::export::private_pages::PrivatePages;
use crate::held_lease::HeldLease;
use crate::process::ProcessLocal;
use crate::store::tensor::Tensor;
use cotensor_sharing::{SharedTensorView, ViewMemory};
use pyo3::prelude::*;
use std::sync::Arc;

/// A view that Python objects hold.
pub(super) type HeldView = Arc<ProcessLocal<SharedTensorView>>;

/// The elements of a view, in the memory that they have now.
pub(super) enum Elements {
    Unpublished(Buffer),
    Published(Tensor),
}

impl Elements {
    /// The elements of `view`. Before publishing, `writable` offers the memory for writing. Waits while the tensor is
    /// being published.
    pub(super) fn of(py: Python<'_>, view: &HeldView, writable: bool) -> PyResult<Self> {
        let layout = view.layout().clone();
        let memory = py.detach(|| view.memory().map(SendViewMemory));
        Ok(match memory.or_raise(py)?.0 {
            ViewMemory::Writable { start, keep } => {
                let keep = Arc::new(Owner { _view: Arc::clone(view), _address: keep }) as KeepAlive;
                Elements::Unpublished(if writable {
                    Buffer::writable(start, layout, keep)
                } else {
                    Buffer::read_only(start, layout, keep)
                })
            }
            ViewMemory::Published(lease) => {
                let held = HeldLease::keeping(lease, Arc::clone(view.store()), Some(Arc::clone(view) as KeepAlive));
                Elements::Published(Tensor::part(PrivatePages::new(held), layout))
            }
        })
    }

    pub(super) fn numpy(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Elements::Unpublished(buffer) => buffer.numpy(py),
            Elements::Published(tensor) => tensor.numpy(py),
        }
    }

    pub(super) fn torch(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Elements::Unpublished(buffer) => buffer.torch(py),
            Elements::Published(tensor) => tensor.torch(py),
        }
    }

    pub(super) fn dlpack(self, py: Python<'_>, request: &DlpackRequest) -> PyResult<Py<PyAny>> {
        match self {
            Elements::Unpublished(buffer) => request.of_unpublished(py, buffer),
            Elements::Published(tensor) => tensor.dlpack(py, request),
        }
    }
}

/// Moves the result of a wait to the thread that is attached to Python.
struct SendViewMemory(ViewMemory);

// SAFETY: an address and its owner, neither bound to a thread.
unsafe impl Send for SendViewMemory {}

struct Owner {
    _view: HeldView,
    _address: Option<KeepAlive>,
}
