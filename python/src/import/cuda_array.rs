//! An array of another library on a CUDA device.

use super::dtype::type_string_dtype;
use super::refusal::refusal;
use super::source::{check_fits, is_row_major, resolved, small_float};
use crate::dlpack::abi::{CUDA, ROCM, device_of};
use crate::dlpack::from_capsule::{Imported, take_cuda};
use crate::errors::{OrRaise, raise};
use crate::export::device::dl_device;
use crate::imports::Torch;
use cotensor::{DType, Error, ErrorKind};
use cotensor_client::ClientStore;
use cotensor_core::Device;
use cotensor_memory::{CudaBytes, CudaMemory};
use cotensor_store::{CopyReason, Holder, Lease, Reservation, TensorSpec};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fmt::Display;
use std::sync::Arc;

/// An array on a CUDA device with its elements side by side, kept alive.
pub(crate) struct CudaArray {
    bytes: CudaBytes,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    keep: Arc<Owner>,
}

enum Owner {
    Object(#[allow(dead_code, reason = "an owner")] Py<PyAny>),
    Capsule(#[allow(dead_code, reason = "an owner")] Imported),
}

// SAFETY: `Imported` has a raw address and an owner that any thread may drop; the bytes are only read.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

/// The fields of `__cuda_array_interface__` or of a capsule. Strides are in bytes.
struct Described {
    address: u64,
    dtype: DType,
    shape: Vec<usize>,
    strides: Option<Vec<isize>>,
}

impl CudaArray {
    /// Describes an array with `__dlpack__` or `__cuda_array_interface__`. `None` for an array that is not on a CUDA device.
    ///
    /// # Errors
    /// `Unsupported` with `place` as the field: the argument that the array came from.
    pub(crate) fn of(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Option<Self>> {
        let py = array.py();
        if array.hasattr(intern!(py, "__dlpack__"))? {
            if !array.hasattr(intern!(py, "__dlpack_device__"))? {
                return Ok(None);
            }
            // Errors of the library are those of its host arrays, too.
            return match device_of(array) {
                Ok((kind @ (CUDA | ROCM), ordinal)) => Self::of_dlpack(array, (kind, ordinal), place).map(Some),
                _ => Ok(None),
            };
        }
        match array.getattr_opt("__cuda_array_interface__")? {
            Some(interface) => {
                let interface = interface.cast_into().map_err(|_| {
                    let message = "__cuda_array_interface__ is not a dict";
                    raise(py, &Error::invalid(message).in_field(place.to_string()))
                })?;
                Self::of_interface(array, &interface, place).map(Some)
            }
            None => Ok(None),
        }
    }

    fn of_dlpack(array: &Bound<'_, PyAny>, device: (i32, i32), place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        let (kind, ordinal) = device;
        let missing = || Error::unsupported(format!("this process has no device {ordinal} of DLPack kind {kind}"));
        let is_it = |memory: &CudaMemory| dl_device(memory).pair() == device;
        let memory = py.detach(CudaMemory::installed);
        let memory = memory.and_then(|all| all.iter().find(|memory| is_it(memory)).ok_or_else(missing));
        let memory = memory.map_err(|error| unshared(py, &error, place))?;
        let stream = py.detach(|| memory.copy_stream()).map_err(|error| unshared(py, &error, place))?;
        let take = || -> PyResult<_> {
            check_torch_capture(array, place)?;
            let array = &resolved(array)?.1;
            // Capsules of floats of 8 bits need a newer torch than the types themselves.
            let small = match array.getattr_opt(intern!(py, "dtype"))? {
                Some(dtype) => small_float(&dtype)?,
                None => None,
            };
            let array = match small {
                Some(_) => &array.call_method1(intern!(py, "view"), (py.import("torch")?.getattr("uint8")?,))?,
                None => array,
            };
            Ok((small, take_cuda(array, kind, stream.handle()).map_err(|error| refusal(array, place, error))?))
        };
        let (small, taken) = with_torch_on(array, ordinal, take)?;
        if taken.device.id != ordinal {
            let message = format!("the array says device {ordinal}, and its capsule device {}", taken.device.id);
            return Err(raise(py, &Error::invalid(message).in_field(place.to_string())));
        }
        let described = Described {
            address: taken.address as u64,
            dtype: small.unwrap_or(taken.dtype),
            shape: taken.shape.clone(),
            strides: Some(taken.strides.clone()),
        };
        let found = Self::new(py, memory, described, Owner::Capsule(taken), place)?;
        Ok(Self { bytes: found.bytes.after(stream), ..found })
    }

    fn of_interface(array: &Bound<'_, PyAny>, interface: &Bound<'_, PyDict>, place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        let field = |name: &str| interface.get_item(name).map(|value| value.filter(|value| !value.is_none()));
        let invalid = |message: String| raise(py, &Error::invalid(message).in_field(place.to_string()));
        let required =
            |name: &str| field(name)?.ok_or_else(|| invalid(format!("__cuda_array_interface__ has no {name:?}")));
        let wrong =
            |name: &str| invalid(format!("{name:?} of __cuda_array_interface__ has another form than version 3 says"));
        if field("mask")?.is_some() {
            let message = "a masked array would lose its mask: share its data and its mask";
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        let (address, _): (u64, bool) = required("data")?.extract().map_err(|_| wrong("data"))?;
        let kind: String = required("typestr")?.extract().map_err(|_| wrong("typestr"))?;
        let dtype = type_string_dtype(&kind).map_err(|error| raise(py, &error.in_field(place.to_string())))?;
        let shape: Vec<usize> = required("shape")?.extract().map_err(|_| wrong("shape"))?;
        let strides = field("strides")?.map(|strides| strides.extract().map_err(|_| wrong("strides"))).transpose()?;
        let is_empty = shape.contains(&0);
        if address == 0 && !is_empty {
            return Err(invalid("\"data\" of __cuda_array_interface__ is address 0".to_owned()));
        }
        // An empty array may have no address, or any.
        let memory = py.detach(|| match CudaMemory::of_address(address) {
            Err(_) if is_empty => first(),
            memory => memory,
        });
        let memory = memory.map_err(|error| unshared(py, &error, place))?;
        let described = Described { address, dtype, shape, strides };
        // Version 3 has the stream whose work writes the array, and None for an array that is complete. Before, any stream may be meant.
        let version: u32 =
            field("version")?.map_or(Ok(0), |version| version.extract().map_err(|_| wrong("version")))?;
        match field("stream")? {
            Some(stream) => {
                let stream: usize = stream.extract().map_err(|_| wrong("stream"))?;
                if stream == 0 {
                    return Err(invalid("stream 0 of __cuda_array_interface__ is ambiguous: 1 or 2".to_owned()));
                }
                // SAFETY: the array's library says that this is a stream of the process, or the number of a default one.
                py.detach(|| unsafe { memory.wait_for(stream) })
            }
            None if version >= 3 => Ok(()),
            None => py.detach(|| memory.wait()),
        }
        .or_raise(py)?;
        Self::new(py, memory, described, Owner::Object(array.clone().unbind()), place)
    }

    fn new(
        py: Python<'_>,
        memory: &CudaMemory,
        described: Described,
        keep: Owner,
        place: &dyn Display,
    ) -> PyResult<Self> {
        let Described { address, dtype, shape, strides } = described;
        let wrong = |error: Error| raise(py, &error.in_field(place.to_string()));
        let too_large = || wrong(Error::invalid(format!("an array of {shape:?} elements is too large")));
        let len = len_bytes(&shape, dtype).ok_or_else(too_large)?;
        if len > 0 && !strides.is_none_or(|strides| is_row_major(&shape, &strides, dtype.size_bytes())) {
            let message = "the elements of the array on the device are not side by side in row-major order: pass a \
                           contiguous one (array.contiguous(), cupy.ascontiguousarray)";
            return Err(wrong(Error::unsupported(message)));
        }
        // SAFETY: by its own description the array has its elements there, and `keep` owns them. The caller must not write them during
        // the call, as with every function that takes an array.
        let bytes = unsafe { memory.bytes_at(address, len) };
        Ok(Self { bytes, dtype, shape, keep: Arc::new(keep) })
    }

    /// The device in a store.
    pub(crate) fn device(&self) -> Device {
        self.bytes.device()
    }

    /// # Errors
    /// As those of [`SourceArray`](super::source::SourceArray::fits).
    pub(crate) fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), Error> {
        check_fits((self.dtype, &self.shape), name, (dtype, shape))
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Publishes the array where it is, if it lies in memory of ``Store.producing``. None for other memory, and where the daemon does not
    /// take it: a copy can be published then. The caller is detached from Python.
    ///
    /// # Errors
    /// Those of the publication.
    pub(crate) fn publish_in_place(
        &self,
        store: &ClientStore,
        spec: TensorSpec,
        holder: &Holder,
    ) -> Option<Result<Lease, Error>> {
        let place = self.bytes.produced()?;
        let publish = || {
            self.bytes.wait()?;
            let (slab, range) = place.share(Box::new(Arc::clone(&self.keep)))?;
            store.reserve_placed(spec, &slab, range, holder)?.publish()
        };
        match publish() {
            Err(error) if is_copied_instead(error.kind()) => None,
            published => Some(published),
        }
    }

    /// Copies the elements into a reservation of the same dtype and shape, detached from Python. The copy is counted.
    pub(crate) fn fill(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        let device = reservation.device();
        let reason = if device == self.device() { CopyReason::Put } else { CopyReason::DeviceTransfer };
        let copy = || reservation.write_by(self.bytes.len(), reason, |target, start| self.bytes.copy_to(target, start));
        py.detach(copy).or_raise(py)
    }
}

/// Errors of a publication where an array is that one of a copy does not have: the array is published already, the daemon takes no slabs,
/// or not so many, or has no room for the memory in which the array lies.
fn is_copied_instead(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Conflict | ErrorKind::Refused | ErrorKind::OverBudget)
}

/// A tensor of PyTorch has the work of the current stream. A stream that waits for a captured one becomes a part of the capture.
///
/// # Errors
/// `Conflict` while PyTorch's current stream is captured.
fn check_torch_capture(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<()> {
    let py = array.py();
    let Some(torch) = Torch::imported(py)? else { return Ok(()) };
    if !torch.is_tensor(array)? {
        return Ok(());
    }
    let cuda = py.import("torch.cuda")?;
    let is_so = |state: &str| cuda.call_method0(state)?.is_truthy();
    if !is_so("is_initialized")? || !is_so("is_current_stream_capturing")? {
        return Ok(());
    }
    let message = "PyTorch's current stream is captured into a CUDA graph, which runs its work later: publish the tensor before \
                   the capture, after the graph has run, or in another stream";
    Err(raise(py, &Error::new(ErrorKind::Conflict, message).in_field(place.to_string())))
}

/// None beyond the address space.
fn len_bytes(shape: &[usize], dtype: DType) -> Option<usize> {
    let len = shape.iter().try_fold(dtype.size_bytes(), |len, &dim| len.checked_mul(dim))?;
    isize::try_from(len).is_ok().then_some(len)
}

/// Runs `call`, for a tensor of PyTorch with its device as PyTorch's current one: PyTorch lets a consumer wait for the current device's
/// stream.
fn with_torch_on<T>(array: &Bound<'_, PyAny>, ordinal: i32, call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let py = array.py();
    match Torch::imported(py)? {
        Some(torch) if torch.is_tensor(array)? => {
            let device = py.import("torch.cuda")?.call_method1("device", (ordinal,))?;
            device.call_method0("__enter__")?;
            let outcome = call();
            device.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
            outcome
        }
        _ => call(),
    }
}

fn first() -> Result<&'static CudaMemory, Error> {
    CudaMemory::installed()?.first().ok_or_else(|| Error::not_found("this process has no CUDA device"))
}

/// The exception for an array on a device whose memory this process cannot use.
fn unshared(py: Python<'_>, error: &Error, place: &dyn Display) -> PyErr {
    let kind = if error.kind() == ErrorKind::Io { ErrorKind::Io } else { ErrorKind::Unsupported };
    let message = format!(
        "the array is on a device whose memory this process cannot share: {error}; copy it to the host first, or pass \
         from_device=True"
    );
    raise(py, &Error::new(kind, message).in_field(place.to_string()))
}
