//! Memory of CUDA devices as arrays of other libraries: DLPack and the CUDA array interface.

use super::buffer::Buffer;
use super::numpy::array_interface;
use crate::dlpack::abi::{CPU, CUDA, Device as DlDevice, ROCM};
use crate::dlpack::to_capsule::Flags;
use crate::errors::{OrRaise, raise};
use cotensor::{DType, Error};
use cotensor_core::{Device, Layout, Memory};
use cotensor_memory::CudaMemory;
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ptr::NonNull;

/// The memory of a CUDA device; none of the host.
///
/// # Errors
/// `Unsupported` for a device that this process does not have.
pub(crate) fn cuda_memory(device: Device) -> Result<Option<&'static CudaMemory>, Error> {
    if device.is_host() {
        return Ok(None);
    }
    let missing = || Error::unsupported(format!("this process has no {device}"));
    CudaMemory::installed()?.iter().find(|memory| memory.device() == device).map(Some).ok_or_else(missing)
}

/// The error for another device than a GPU.
pub(crate) fn not_cuda(device: Device) -> Error {
    Error::invalid(format!("{device} is not a GPU: pass a device such as \"cuda:0\"")).in_field("device")
}

/// The memory of the CUDA device that libraries of this process call `number`.
///
/// # Errors
/// As [`CudaMemory::installed`]; `Unsupported` for a device that this process does not have.
pub(crate) fn cuda_memory_of(number: i64) -> Result<&'static CudaMemory, Error> {
    let missing = || Error::unsupported(format!("this process has no CUDA device {number} that a store can use"));
    CudaMemory::installed()?.iter().find(|memory| i64::from(memory.ordinal()) == number).ok_or_else(missing)
}

/// The name in a store, ``cuda:N``, of the CUDA device that libraries of this process call ``number``.
#[pyfunction]
pub(crate) fn cuda_device(py: Python<'_>, number: u32) -> PyResult<String> {
    Ok(py.detach(|| cuda_memory_of(number.into())).or_raise(py)?.device().to_string())
}

/// The device as DLPack has it, with its number in this process.
pub(crate) fn dl_device(memory: &CudaMemory) -> DlDevice {
    let kind = if memory.is_amd() { ROCM } else { CUDA };
    DlDevice { kind, id: i32::try_from(memory.ordinal()).unwrap_or(i32::MAX) }
}

/// The error of a method that needs host memory. `what` is the tensor.
pub(crate) fn not_on_host(what: &str, device: Device) -> Error {
    let copies = "tensor.copy_to(array), tensor.detach() or numpy.from_dlpack(tensor, device=\"cpu\")";
    let message = format!(
        "{what:?} is on {device}, whose memory the host cannot address: copy it to the host by {copies}, or use it on the \
         device by DLPack or torch()"
    );
    Error::unsupported(message)
}

/// What a consumer of `__dlpack__` wants of memory on a device.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    Shared,
    DeviceCopy,
    HostCopy,
}

impl Wanted {
    /// What the arguments of `__dlpack__` ask for.
    ///
    /// Published memory is complete: its publication has waited for the device, and so has each copy. So the consumer's stream needs no
    /// event of a producer, and `stream` has no effect besides the check. A builder waits for its earlier consumers itself.
    ///
    /// # Errors
    /// `BufferError` for a stream that CUDA does not have, for another device, and for a copy that `copy=False` forbids.
    pub(crate) fn of(
        own: DlDevice,
        stream: Option<&Bound<'_, PyAny>>,
        wanted: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Self> {
        // In the specification, None and 1 are the legacy default stream, 2 is the one of the thread, larger numbers are handles, and
        // -1 is no synchronization. 0 is ambiguous; for AMD, it is the default stream.
        let stream = stream.filter(|stream| !stream.is_none());
        if let Some(stream) = stream
            && !stream.extract::<i64>().is_ok_and(|id| id == -1 || id > 0 || (id == 0 && own.kind == ROCM))
        {
            let shown = stream.repr()?;
            let message = format!("stream {shown} is not a stream of CUDA: pass None, -1, 1, 2 or a handle");
            return Err(PyBufferError::new_err(message));
        }
        match wanted {
            Some((CPU, _)) if copy == Some(false) => {
                Err(PyBufferError::new_err("the host needs a copy, which copy=False forbids"))
            }
            Some((CPU, _)) => Ok(Self::HostCopy),
            Some(wanted) if wanted != own.pair() => {
                let own = own.pair();
                let message = format!("this tensor is on {own:?}: pass that or (1, 0) as dl_device, not {wanted:?}");
                Err(PyBufferError::new_err(message))
            }
            _ if copy == Some(true) => Ok(Self::DeviceCopy),
            _ => Ok(Self::Shared),
        }
    }
}

/// An address of a device, which the host cannot use, as a pointer for programs on the device.
///
/// # Errors
/// `Invalid` for an address that no memory has.
pub(crate) fn device_pointer(address: u64) -> Result<NonNull<u8>, Error> {
    let pointer = usize::try_from(address).ok().map(std::ptr::without_provenance_mut);
    pointer.and_then(NonNull::new).ok_or_else(|| Error::invalid("memory of a device without an address"))
}

/// How capsules describe memory of a device that consumers may write.
pub(crate) fn on_device(memory: &CudaMemory) -> Flags {
    Flags { device: dl_device(memory), ..Flags::HOST }
}

/// The dict of `__cuda_array_interface__`, version 3.
///
/// # Errors
/// `AttributeError` for element types that it has no code for, and for memory of the host (no `memory`).
pub(crate) fn cuda_array_interface<'py>(
    py: Python<'py>,
    memory: Option<&CudaMemory>,
    layout: &Layout,
    buffer: impl FnOnce() -> PyResult<Buffer>,
    read_only: bool,
) -> PyResult<Bound<'py, PyDict>> {
    if memory.is_none() {
        return Err(PyAttributeError::new_err("__cuda_array_interface__: the tensor is in host memory"));
    }
    if let dtype @ (DType::BF16 | DType::F8E4M3FN | DType::F8E5M2) = layout.dtype() {
        let message = format!("__cuda_array_interface__ has no code for {dtype}: use DLPack");
        return Err(PyAttributeError::new_err(message));
    }
    let buffer = buffer()?;
    let interface = array_interface(py, layout, buffer.address(), read_only)?;
    if layout.is_empty() {
        interface.set_item("data", (0, read_only))?;
    }
    // Published memory is complete, and a builder waits for its earlier consumers: see `Wanted::of`.
    interface.set_item("stream", py.None())?;
    Ok(interface)
}

/// # Errors
/// `Unsupported` where PyTorch has no CUDA.
pub(crate) fn check_torch_cuda(py: Python<'_>) -> PyResult<()> {
    if py.import("torch")?.getattr("cuda")?.call_method0("is_available")?.is_truthy()? {
        return Ok(());
    }
    let message = "the tensor is on a GPU, and this PyTorch has no CUDA (torch.cuda.is_available()): copy the tensor to the \
                   host by tensor.copy_to(array) or tensor.detach()";
    Err(raise(py, &Error::unsupported(message)))
}
