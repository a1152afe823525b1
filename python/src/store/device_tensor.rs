//! Published tensors for programs on CUDA devices: DLPack, and the CUDA array interface.

use super::tensor::Tensor;
use crate::dlpack::abi::HOST;
use crate::dlpack::to_capsule::Flags;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::{Buffer, DlpackRequest, KeepAlive};
use crate::export::device::{
    Wanted, cuda_array_interface, cuda_memory, device_pointer, dl_device as dl_device_of, on_device,
};
use crate::process::ProcessLocal;
use crate::release::release_later;
use cotensor::{DType, Error};
use cotensor_core::sync::lock;
use cotensor_core::{Layout, Memory};
use cotensor_memory::CudaMemory;
use cotensor_store::{CopyReason, Reservation, TensorSpec};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};

/// A copy on a device that only this process has.
struct DeviceCopy(Mutex<Option<ProcessLocal<Reservation>>>);

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        if let Some(copy) = lock(&self.0).take().filter(ProcessLocal::is_ours) {
            release_later(Box::new(copy));
        }
    }
}

impl Tensor {
    /// The memory of the CUDA device that has the tensor; none of the host.
    ///
    /// # Errors
    /// `Unsupported` for a device that this process does not have, `Conflict` after `release()`.
    pub(super) fn cuda(&self, py: Python<'_>) -> PyResult<Option<&'static CudaMemory>> {
        cuda_memory(self.held(py)?.device()).or_raise(py)
    }

    /// The elements for programs on the device.
    pub(super) fn device_buffer(&self, py: Python<'_>, memory: &'static CudaMemory) -> PyResult<Buffer> {
        let held = self.held(py)?;
        let address = py.detach(|| held.device_address(memory)).or_raise(py)?;
        let address = device_pointer(address + self.layout.offset_bytes() as u64).or_raise(py)?;
        let flags = Flags { read_only: true, ..on_device(memory) };
        Ok(Buffer::on_device(address, self.layout.clone(), held as KeepAlive, flags))
    }

    /// A DLPack capsule of what a consumer wants.
    pub(super) fn device_capsule(
        &self,
        py: Python<'_>,
        memory: &'static CudaMemory,
        wanted: Wanted,
        max_version: Option<(u32, u32)>,
    ) -> PyResult<Py<PyAny>> {
        let buffer = match wanted {
            Wanted::Shared => self.device_buffer(py, memory)?,
            Wanted::DeviceCopy => self.device_copy(py, memory)?,
            Wanted::HostCopy => self.copied(py)?,
        };
        buffer.capsule(py, max_version)
    }

    /// A copy on the same device that only this process has, with the strides of this tensor. The copy is counted.
    fn device_copy(&self, py: Python<'_>, memory: &'static CudaMemory) -> PyResult<Buffer> {
        let held = self.held(py)?;
        let (lease, device) = (held.lease(), memory.device());
        let store =
            held.store().ok_or_else(|| raise(py, &Error::unsupported("a forked process cannot use the GPU")))?;
        let (range, shape, strides) = (self.layout.byte_range(), self.layout.shape(), self.layout.strides());
        let copy = || {
            let layout = Layout::strided(self.layout.dtype(), shape, strides, 0)?;
            let spec = TensorSpec::new(lease.name(), DType::U8, &[range.len()]).on(device);
            let mut copy = store.reserve_private(spec, &store.holder(&lease.holder()))?;
            let address = held.device_address(memory)? + range.start as u64;
            // SAFETY: the lease keeps the memory, which nothing writes, and the layout's bytes are inside.
            let source = unsafe { memory.bytes_at(address, range.len()) };
            copy.write_by(range.len(), CopyReason::PrivateCopy, |target, start| source.copy_to(target, start))?;
            Ok::<_, Error>((copy.device_address()?, layout, copy))
        };
        let (address, layout, copy) = py.detach(copy).or_raise(py)?;
        let keep = Arc::new(DeviceCopy(Mutex::new(Some(ProcessLocal::new(copy))))) as KeepAlive;
        let address = device_pointer(address).or_raise(py)?;
        Ok(Buffer::on_device(address, layout, keep, Flags { copied: true, ..on_device(memory) }))
    }
}

#[pymethods]
impl Tensor {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        match self.cuda(py)? {
            None => self.dlpack(py, &DlpackRequest::new(stream, max_version, dl_device, copy)?),
            Some(memory) => {
                let wanted = Wanted::of(dl_device_of(memory), stream, dl_device, copy)?;
                self.device_capsule(py, memory, wanted, max_version)
            }
        }
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(self.cuda(py)?.map_or(HOST, |memory| dl_device_of(memory).pair()))
    }

    /// Only of a tensor on a CUDA device.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Ok(held) = self.held(py) else {
            return Err(PyAttributeError::new_err("__cuda_array_interface__: this tensor was released"));
        };
        let memory = self.cuda(py)?;
        let buffer = || memory.map_or_else(|| self.numpy_buffer(py), |memory| self.device_buffer(py, memory));
        let interface = cuda_array_interface(py, memory, &self.layout, buffer, true)?;
        self.shown.get_or_init(|| held);
        Ok(interface)
    }
}
