//! Unpublished tensors for programs on CUDA devices: DLPack, the CUDA array interface, and copies from the device.

use super::builder::TensorBuilder;
use crate::dlpack::abi::HOST;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::DlpackRequest;
use crate::export::device::{Wanted, cuda_array_interface, cuda_memory, dl_device as dl_device_of};
use cotensor::Error;
use cotensor_core::{Memory as _, SegmentMut};
use cotensor_memory::CudaMemory;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::Ordering;

impl TensorBuilder {
    /// The memory of the CUDA device that has the tensor; none of the host.
    pub(super) fn cuda(&self) -> Result<Option<&'static CudaMemory>, Error> {
        cuda_memory(self.memory.device)
    }

    /// Gives the address to a consumer. A later one waits for the work of the earlier ones, whose streams are not known.
    pub(super) fn lend(&self, py: Python<'_>, memory: Option<&CudaMemory>) -> PyResult<()> {
        match memory.filter(|_| self.memory.is_lent.swap(true, Ordering::Relaxed)) {
            Some(memory) => py.detach(|| memory.wait()).or_raise(py),
            None => Ok(()),
        }
    }

    /// Waits for the work that a stream has now. The publication that follows waits for no other work.
    pub(super) fn end_writes(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let host = || {
            let message = format!("{:?} is on the host, where no stream writes it: publish()", self.name);
            raise(py, &Error::invalid(message).in_field("stream"))
        };
        let memory = self.cuda().or_raise(py)?.ok_or_else(host)?;
        // SAFETY: the caller says that this is a stream of the process, and that its work alone writes the memory.
        let end = |target: &mut dyn SegmentMut, _: usize| unsafe { memory.end_writes(target, stream) };
        self.writing(py, |py, reservation| py.detach(|| reservation.write_part(end)).or_raise(py))
    }
}

#[pymethods]
impl TensorBuilder {
    /// Copies bytes of the memory's GPU into the memory, after the work of this process there: from the byte ``offset`` on, ``nbytes``
    /// bytes at an address of the GPU, for each part. :meth:`record_copy` counts them.
    fn _copy_parts(&self, py: Python<'_>, parts: Vec<(usize, u64, usize)>) -> PyResult<()> {
        let host = || raise(py, &Error::unsupported(format!("{}: the memory is not on a GPU", self.name)));
        let memory = self.cuda().or_raise(py)?.ok_or_else(host)?;
        let copy = |target: &mut dyn SegmentMut, start: usize| {
            memory.wait()?;
            for (offset, address, len) in parts.into_iter().filter(|(.., len)| *len > 0) {
                if CudaMemory::of_address(address)?.device() != memory.device() {
                    let message = format!("{address:#x} is not an address of {}", memory.device());
                    return Err(Error::invalid(message));
                }
                // SAFETY: the caller has a tensor with these bytes, and waits for this call.
                let source = unsafe { memory.bytes_at(address, len) };
                source.copy_to(target, start.saturating_add(offset))?;
            }
            Ok(())
        };
        self.writing(py, |py, reservation| py.detach(|| reservation.write_part(copy)).or_raise(py))
    }

    /// Only of a tensor on a CUDA device.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let memory = self.cuda().or_raise(py)?;
        let interface = cuda_array_interface(py, memory, &self.layout, || self.buffer().or_raise(py), false)?;
        self.lend(py, memory)?;
        Ok(interface)
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
        let buffer = self.buffer().or_raise(py)?;
        let request = match self.cuda().or_raise(py)? {
            None => DlpackRequest::new(stream, max_version, dl_device, copy)?,
            Some(memory) => {
                let wanted = Wanted::of(dl_device_of(memory), stream, dl_device, copy)?;
                let is_unordered = stream.is_some_and(|stream| stream.extract::<i64>().is_ok_and(|id| id == -1));
                if wanted == Wanted::Shared && !is_unordered {
                    self.lend(py, Some(memory))?;
                }
                DlpackRequest { max_version, copy: wanted != Wanted::Shared }
            }
        };
        request.of_unpublished(py, buffer)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(self.cuda().or_raise(py)?.map_or(HOST, |memory| dl_device_of(memory).pair()))
    }
}
