//! The one exporter: memory of this process as an array of numpy, torch or any library that reads DLPack.

use super::numpy::{array_interface, as_numpy};
use crate::dlpack::abi::CPU;
use crate::dlpack::to_capsule::{Flags, to_capsule};
use crate::errors::OrRaise;
use crate::imports::Torch;
use cotensor::DType;
use cotensor_core::Layout;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// An owner of memory whose address is in use.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

/// The elements of a layout at an address, and the owner of that memory. Every array made from a buffer holds the
/// owner.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Buffer {
    /// The first element.
    address: NonNull<u8>,
    /// Its offset does not count.
    layout: Layout,
    flags: Flags,
    keep: KeepAlive,
}

// SAFETY: an address and its owner; code that writes there is responsible for races, as with any array.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory that consumers may write.
    pub(crate) fn writable(address: NonNull<u8>, layout: Layout, keep: KeepAlive) -> Self {
        Self { address, layout, flags: Flags::HOST, keep }
    }

    /// Memory that consumers are told not to write. torch ignores this.
    pub(crate) fn read_only(address: NonNull<u8>, layout: Layout, keep: KeepAlive) -> Self {
        Self { address, layout, flags: Flags { read_only: true, ..Flags::HOST }, keep }
    }

    /// A private copy of a tensor.
    pub(crate) fn copied(address: NonNull<u8>, layout: Layout, keep: KeepAlive) -> Self {
        Self { address, layout, flags: Flags { copied: true, ..Flags::HOST }, keep }
    }

    /// Memory that a device addresses.
    pub(crate) fn on_device(address: NonNull<u8>, layout: Layout, keep: KeepAlive, flags: Flags) -> Self {
        Self { address, layout, flags, keep }
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The dict of `__array_interface__`.
    pub(crate) fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, &self.layout, self.address, self.flags.read_only)
    }

    /// A numpy array on this memory.
    pub(crate) fn numpy(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let dtype = self.layout.dtype();
        as_numpy(Bound::new(py, self)?.as_any(), dtype)
    }

    /// A torch tensor on this memory. torch has no read-only tensors, so this passes a capsule without that flag.
    pub(crate) fn torch(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let dtype = self.layout.dtype();
        let torch = Torch::import(py)?;
        if !matches!(dtype, DType::F8E4M3FN | DType::F8E5M2) {
            return torch.from_dlpack.bind(py).call1((self.capsule(py, None)?,));
        }
        // Capsules of these types need a newer torch than the types themselves.
        let Self { address, layout, flags, keep } = self;
        let bytes = Layout::strided(DType::U8, layout.shape(), layout.strides(), layout.offset_bytes()).or_raise(py)?;
        let bytes = Self { address, layout: bytes, flags, keep };
        let shown = torch.from_dlpack.bind(py).call1((bytes.capsule(py, None)?,))?;
        shown.call_method1("view", (py.import("torch")?.getattr(dtype.name())?,))
    }

    /// A DLPack capsule of the newest version up to `max_version`; of version 0 without.
    pub(crate) fn capsule(self, py: Python<'_>, max_version: Option<(u32, u32)>) -> PyResult<Py<PyAny>> {
        to_capsule(py, self.address, &self.layout, self.keep, self.flags, max_version)
    }
}

#[pymethods]
impl Buffer {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py)
    }
}

/// The arguments of `__dlpack__`, after a check of those that host memory restricts.
pub(crate) struct DlpackRequest {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) copy: bool,
}

impl DlpackRequest {
    /// # Errors
    /// `BufferError` for a device other than the host, or for a stream.
    pub(crate) fn new(
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Self> {
        if device.is_some_and(|(kind, _)| kind != CPU) {
            return Err(PyBufferError::new_err("this tensor is in host memory: pass dl_device=(1, 0) or none"));
        }
        // In the specification, -1 and None both mean that no synchronization is needed.
        let none = |stream: &Bound<'_, PyAny>| stream.is_none() || stream.extract::<i64>().is_ok_and(|id| id == -1);
        if !stream.is_none_or(none) {
            return Err(PyBufferError::new_err("host memory has no streams: pass stream=None"));
        }
        Ok(Self { max_version, copy: copy.unwrap_or(false) })
    }

    /// A capsule of memory that is not published yet.
    ///
    /// # Errors
    /// `BufferError` for a copy: the memory still changes.
    pub(crate) fn of_unpublished(&self, py: Python<'_>, buffer: Buffer) -> PyResult<Py<PyAny>> {
        if self.copy {
            return Err(PyBufferError::new_err(
                "an unpublished tensor is not copied: publish it first, or copy the array",
            ));
        }
        buffer.capsule(py, self.max_version)
    }
}
