//! The class `Frame`.

use crate::store::tensor::Tensor;
use cotensor::Store;
use cotensor_client::Frame as ClientFrame;
use pyo3::prelude::*;
use std::sync::Arc;

/// A frame of a channel. Its bytes stay as they are while its tensor, or an array made from it, exists: drop them soon, as a reader holds
/// a few frames only.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Frame {
    name: String,
    /// The tensor, which is private to this process.
    #[pyo3(get)]
    tensor: Py<Tensor>,
    /// The frame's number. The first one of a channel is 1.
    #[pyo3(get)]
    number: u64,
    /// The number of frames between this one and the one that the reader took before.
    #[pyo3(get)]
    lost: u64,
    /// Seconds from the publication of the frame until the reader took it.
    #[pyo3(get)]
    age: f64,
}

impl Frame {
    pub(super) fn new(py: Python<'_>, frame: ClientFrame, store: Arc<dyn Store>) -> PyResult<Self> {
        let (number, lost, age) = (frame.number(), frame.lost(), frame.age().as_secs_f64());
        let name = frame.lease().name().to_owned();
        Ok(Self { name, tensor: Py::new(py, Tensor::new(frame.into_lease(), store))?, number, lost, age })
    }
}

#[pymethods]
impl Frame {
    /// A read-only numpy array on the frame's memory.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tensor.bind(py).call_method0("numpy")
    }

    /// A torch tensor on the frame's memory. Writes in place are private to this process.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tensor.bind(py).call_method0("torch")
    }

    /// Releases the tensor. Arrays that were made from it keep the frame.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.tensor.bind(py).call_method0("release").map(drop)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self) -> String {
        format!("<Frame {} of {:?}, {} lost>", self.number, self.name, self.lost)
    }
}
