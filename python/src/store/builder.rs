//! An unpublished tensor.

use super::pickle::Reduced;
use super::tensor::Tensor;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::{Buffer, KeepAlive};
use crate::export::device::{check_torch_cuda, device_pointer, on_device};
use crate::export::dtype::dtype_object;
use crate::export::numpy::as_array;
use crate::import::source::SourceArray;
use crate::import::value::Value;
use crate::process::ProcessLocal;
use crate::release::release_later;
use cotensor::{Error, ErrorKind, Lease, Store};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Layout};
use cotensor_memory::ForeignMemfd;
use cotensor_store::{CopyReason, Expected, Reservation, TensorId};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyTuple};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

/// An unpublished tensor, which only this process can access. Write it in place: ``numpy.asarray(builder)``,
/// ``torch.from_dlpack(builder)``. ``publish()`` makes it immutable and visible. So does leaving a ``with`` block
/// without an exception.
///
/// Arrays of a builder stay valid after publishing. Later writes through them are private to this process, and fail on a device.
///
/// ``torch.from_dlpack(builder)`` and ``cupy.from_dlpack(builder)`` write a builder of a CUDA device. ``publish()`` waits for the
/// device first.
///
/// Workers of a pool of :mod:`multiprocessing` (or joblib) that are given the builder fill parts of the same memory. Only
/// the process that made it publishes it.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct TensorBuilder {
    pub(super) name: String,
    pub(super) layout: Layout,
    pub(super) memory: Arc<Memory>,
    /// `None` in a process that only helps to fill it.
    store: Option<ProcessLocal<Arc<dyn Store>>>,
}

/// The memory that the arrays of a builder show.
pub(super) struct Memory {
    address: NonNull<u8>,
    pub(super) device: Device,
    state: Mutex<BuilderState>,
    /// Keeps the address valid in every state. Taken by the drop only.
    pin: Option<KeepAlive>,
    /// Whether a consumer has the address, whose work on the device may write it.
    pub(super) is_lent: AtomicBool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.device.is_host() {
            let state = std::mem::replace(&mut *lock(&self.state), BuilderState::Failed);
            release_later(Box::new((state, self.pin.take())));
        }
    }
}

enum BuilderState {
    Open(ProcessLocal<Reservation>),
    /// The memory lives as long as the lease; see [`Store::reserve_aliased`].
    Published(#[allow(dead_code, reason = "an owner")] ProcessLocal<Lease>),
    /// Arrays may still show the memory.
    Discarded(#[allow(dead_code, reason = "an owner")] ProcessLocal<Reservation>),
    /// Another process publishes it.
    Foreign,
    /// A thread copies an array into it. The number of the memory's descriptor, which stays open.
    Writing(Option<RawFd>),
    Failed,
}

// SAFETY: an address and its owner; code that writes there is responsible for races, as with any array.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl BuilderState {
    /// Why the tensor cannot be written or published in this state.
    fn conflict(&self) -> &'static str {
        match self {
            BuilderState::Open(_) => "it belongs to the parent process",
            BuilderState::Published(_) => "it is already published",
            BuilderState::Discarded(_) => "it was discarded",
            BuilderState::Foreign => "the process that made it publishes or discards it",
            BuilderState::Writing(_) => "another thread writes it",
            BuilderState::Failed => "an attempt to publish it failed",
        }
    }
}

impl TensorBuilder {
    /// # Errors
    /// `Unsupported` for memory that the host cannot write, or that does not outlive its tensor.
    pub(super) fn new(reservation: Reservation, store: Arc<dyn Store>) -> Result<Self, Error> {
        reservation.populate(0..reservation.layout().size_bytes())?;
        Self::unpopulated(reservation, store)
    }

    /// As [`new`](Self::new), without memory: [`_populate`](Self::_populate) makes it before it is written at its address.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn unpopulated(mut reservation: Reservation, store: Arc<dyn Store>) -> Result<Self, Error> {
        let (name, layout) = (reservation.name().to_owned(), reservation.layout().clone());
        let (device, unwritable) = (reservation.device(), || Error::unsupported("the host cannot write this memory"));
        let address = if device.is_host() {
            reservation.unpopulated_address().ok_or_else(unwritable)?
        } else {
            device_pointer(reservation.device_address()?)?
        };
        let unkept = || Error::unsupported("the store's memory does not outlive its tensors");
        let pin = Some(reservation.pin_address().ok_or_else(unkept)?);
        let state = Mutex::new(BuilderState::Open(ProcessLocal::new(reservation)));
        Ok(Self {
            name,
            layout,
            memory: Arc::new(Memory { address, device, state, pin, is_lent: AtomicBool::new(false) }),
            store: Some(ProcessLocal::new(store)),
        })
    }

    /// Copies an array into memory that another process publishes.
    fn write_foreign(&self, py: Python<'_>, source: &SourceArray) {
        // SAFETY: the mapping, which `memory` owns, has the bytes of the layout. Other processes and arrays of this one may
        // write them at the same time, as they may with any array in shared memory.
        let target = unsafe { std::slice::from_raw_parts_mut(self.memory.address.as_ptr(), self.layout.size_bytes()) };
        py.detach(|| source.copy_to(target));
    }

    fn state(&self) -> MutexGuard<'_, BuilderState> {
        lock(&self.memory.state)
    }

    fn conflict(&self, py: Python<'_>, why: &str) -> PyErr {
        raise(py, &Error::new(ErrorKind::Conflict, format!("{}: {why}", self.name)))
    }

    /// Takes the reservation out and leaves `next` as the state.
    fn take(&self, py: Python<'_>, next: BuilderState) -> PyResult<ProcessLocal<Reservation>> {
        let taken = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, next) {
                BuilderState::Open(reservation) if reservation.is_ours() => Ok(reservation),
                other => {
                    let why = other.conflict();
                    *state = other;
                    Err(why)
                }
            }
        };
        taken.map_err(|why| self.conflict(py, why))
    }

    /// Takes the reservation out to publish it. [`set_published`](Self::set_published) has to follow.
    ///
    /// # Errors
    /// `Conflict` unless the tensor is unpublished and this process's own.
    pub(super) fn take_reservation(&self, py: Python<'_>) -> PyResult<Reservation> {
        Ok(self.take(py, BuilderState::Failed)?.into_inner())
    }

    fn publish_by(
        &self,
        py: Python<'_>,
        publish: impl FnOnce(Reservation) -> Result<Lease, Error> + Send,
    ) -> PyResult<Tensor> {
        let reservation = self.take_reservation(py)?;
        let lease = py.detach(|| publish(reservation)).or_raise(py)?;
        self.set_published(&lease).or_raise(py)?;
        let store = self.store.as_ref().ok_or_else(|| self.conflict(py, BuilderState::Foreign.conflict()))?;
        Ok(Tensor::new(lease, Arc::clone(store)))
    }

    /// Keeps the memory as long as the lease of the published tensor.
    pub(super) fn set_published(&self, lease: &Lease) -> Result<(), Error> {
        *self.state() = BuilderState::Published(ProcessLocal::new(lease.try_clone()?));
        Ok(())
    }

    /// The descriptor of the memory, if it has one.
    fn fileno(&self, py: Python<'_>) -> PyResult<Option<RawFd>> {
        let fd = match &*self.state() {
            BuilderState::Open(reservation) if reservation.is_ours() => {
                Ok(reservation.writable_fd().map(|fd| fd.as_raw_fd()))
            }
            BuilderState::Writing(fd) => Ok(*fd),
            other => Err(other.conflict()),
        };
        fd.map_err(|why| self.conflict(py, why))
    }

    /// Lets `write` write the unpublished tensor. No lock is held meanwhile: other threads read the state.
    pub(super) fn writing<T>(
        &self,
        py: Python<'_>,
        write: impl FnOnce(Python<'_>, &mut Reservation) -> PyResult<T>,
    ) -> PyResult<T> {
        let fd = self.fileno(py)?;
        let mut reservation = self.take(py, BuilderState::Writing(fd))?;
        let outcome = write(py, &mut reservation);
        *self.state() = BuilderState::Open(reservation);
        outcome
    }

    /// Makes the memory of a range of bytes exist.
    fn populate(&self, range: Range<usize>) -> Result<(), Error> {
        match &*self.state() {
            BuilderState::Open(reservation) if reservation.is_ours() => reservation.populate(range),
            // It exists, or is made by the write.
            _ => Ok(()),
        }
    }

    pub(super) fn buffer(&self) -> Result<Buffer, Error> {
        self.populate(0..self.layout.size_bytes())?;
        let (address, layout) = (self.memory.address, self.layout.clone());
        let keep = Arc::clone(&self.memory) as KeepAlive;
        Ok(match self.cuda()? {
            None => Buffer::writable(address, layout, keep),
            Some(memory) => Buffer::on_device(address, layout, keep, on_device(memory)),
        })
    }

    /// The memory, if the host can write it.
    fn host_buffer(&self) -> Result<Buffer, Error> {
        if !self.memory.device.is_host() {
            let device = self.memory.device;
            let message = format!(
                "{:?} is on {device}, whose memory the host cannot address: write(array) copies an array there, and \
                 from_dlpack of torch and CuPy writes it on the device",
                self.name
            );
            return Err(Error::unsupported(message));
        }
        self.buffer()
    }
}

#[pymethods]
impl TensorBuilder {
    /// The name to publish under.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// The element type's name.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.layout.dtype())
    }

    /// The device: ``cpu``, or ``cuda:N`` by its number on the machine.
    #[getter]
    fn device(&self) -> String {
        self.memory.device.to_string()
    }

    /// Size of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.size_bytes()
    }

    /// The address of the first element, on a device for the device.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        self.populate(0..self.layout.size_bytes()).or_raise(py)?;
        Ok(self.memory.address.as_ptr() as usize)
    }

    /// Whether the tensor is published.
    #[getter]
    fn published(&self) -> bool {
        matches!(*self.state(), BuilderState::Published(_))
    }

    /// A writable numpy array on the memory. bfloat16 needs ml_dtypes.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.host_buffer().or_raise(py)?.numpy(py)
    }

    /// A torch tensor on the memory.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if !self.memory.device.is_host() {
            check_torch_cuda(py)?;
        }
        let buffer = self.buffer().or_raise(py)?;
        self.lend(py, self.cuda().or_raise(py)?)?;
        buffer.torch(py)
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

    /// Copies an array of the same dtype and shape into the memory, after the work of this process on the memory's device.
    fn write(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = if self.memory.device.is_host() {
            Value::Host(SourceArray::of(array, &"array")?)
        } else {
            Value::of(array, false, &"array")?
        };
        source.fits(&self.name, self.layout.dtype(), self.layout.shape()).or_raise(py)?;
        if let Value::Host(source) = &source
            && matches!(*self.state(), BuilderState::Foreign)
        {
            self.write_foreign(py, source);
            return Ok(());
        }
        self.writing(py, |py, reservation| source.fill_again(py, reservation))
    }

    /// Writes bytes from the byte ``offset`` on, which :meth:`record_copy` counts.
    fn _write_bytes(&self, py: Python<'_>, offset: usize, data: PyBackedBytes) -> PyResult<()> {
        self.writing(py, |py, reservation| {
            py.detach(|| reservation.write_part(|target, start| target.write_at(start.saturating_add(offset), &data)))
                .or_raise(py)
        })
    }

    /// Makes the memory of the bytes from ``start`` to ``end`` exist, which the caller is about to write at ``_address``.
    fn _populate(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
        py.detach(|| self.populate(start..end.max(start))).or_raise(py)
    }

    /// The address of the first byte, also before its memory exists.
    #[getter]
    fn _address(&self) -> usize {
        self.memory.address.as_ptr() as usize
    }

    /// Counts ``nbytes`` bytes that the caller copied into the memory through an array.
    fn record_copy(&self, py: Python<'_>, nbytes: usize) -> PyResult<()> {
        let counted = match &*self.state() {
            BuilderState::Open(reservation) if reservation.is_ours() => {
                reservation.record_copy(CopyReason::Put, nbytes);
                Ok(())
            }
            other => Err(other.conflict()),
        };
        counted.map_err(|why| self.conflict(py, why))
    }

    /// Makes the tensor immutable and visible under its name. Returns it, leased. On a GPU, waits for all work of this process there. With
    /// ``stream``, waits for the work that this stream has now, which has to be all that writes the memory: a stream's handle as the driver
    /// has it, such as ``torch.cuda.current_stream().cuda_stream``.
    #[pyo3(signature = (*, stream=None))]
    fn publish(&self, py: Python<'_>, #[pyo3(from_py_with = args::stream)] stream: Option<usize>) -> PyResult<Tensor> {
        if let Some(stream) = stream {
            self.end_writes(py, stream)?;
        }
        self.publish_by(py, Reservation::publish)
    }

    /// Publishes the tensor if its name has the version ``id`` then, or none for ``None``. Raises ``ConflictError`` otherwise.
    fn _publish_if(&self, py: Python<'_>, #[pyo3(from_py_with = args::id)] id: Option<(u64, u64)>) -> PyResult<Tensor> {
        let version = |(name_id, version)| Expected::Version(TensorId { name_id, version });
        let expected = id.map_or(Expected::Absent, version);
        self.publish_by(py, |reservation| reservation.publish_expecting(expected))
    }

    /// Discards the tensor without publishing it.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let reservation = self.take(py, BuilderState::Failed)?;
        *self.state() = BuilderState::Discarded(reservation);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind=None, _value=None, _trace=None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let is_writing = match *self.state() {
            BuilderState::Open(_) => false,
            BuilderState::Writing(_) => true,
            _ => return Ok(()),
        };
        match kind {
            None => self.publish(py, None).map(drop),
            // The exception of the block is raised. The memory ends with the builder.
            Some(_) if is_writing => Ok(()),
            Some(_) => self.discard(py),
        }
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.memory.device.is_host() {
            let message = format!("__array_interface__: the tensor is on {}", self.memory.device);
            return Err(PyAttributeError::new_err(message));
        }
        self.buffer().or_raise(py)?.interface(py)
    }

    /// The descriptor of the memory, which the builder keeps open until it is published or discarded.
    fn _fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let what = if self.memory.device.is_host() { "a local store" } else { "a device" };
        let message = || format!("{}: unpublished memory of {what} that processes cannot share", self.name);
        self.fileno(py)?.ok_or_else(|| raise(py, &Error::unsupported(message())))
    }

    /// Opens the memory of a builder of another process, by a descriptor that this call closes.
    #[staticmethod]
    fn _open(
        py: Python<'_>,
        fd: RawFd,
        name: String,
        #[pyo3(from_py_with = args::dtype)] dtype: String,
        #[pyo3(from_py_with = args::shape)] shape: Vec<usize>,
    ) -> PyResult<Self> {
        if fd < 0 {
            return Err(raise(py, &Error::invalid(format!("{fd} is not a descriptor")).in_field("fd")));
        }
        // SAFETY: the caller passes a descriptor that it owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let open = || {
            let layout = Layout::contiguous(dtype.parse()?, &shape)?;
            let memfd = ForeignMemfd::open(fd, layout.size_bytes())?;
            let (address, state) = (memfd.start(), Mutex::new(BuilderState::Foreign));
            let pin = Some(Arc::new(Mutex::new(memfd)) as KeepAlive);
            let is_lent = AtomicBool::new(false);
            let memory = Arc::new(Memory { address, device: Device::Cpu, state, pin, is_lent });
            Ok(Self { name: name.clone(), layout, memory, store: None })
        };
        open().map_err(|error: Error| error.in_field(name.as_str())).or_raise(py)
    }

    /// The handle for a process that helps to fill it.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        slf.py().import("cotensor._handles")?.call_method1("reduce_builder", (slf,))?.extract()
    }

    fn __repr__(&self) -> String {
        let dims = self.layout.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let state = match &*self.state() {
            BuilderState::Open(_) | BuilderState::Writing(_) => "unpublished",
            BuilderState::Foreign => "of another process",
            BuilderState::Published(_) => "published",
            BuilderState::Discarded(_) | BuilderState::Failed => "discarded",
        };
        format!("<TensorBuilder {:?}, {}[{dims}], {} bytes, {state}>", self.name, self.layout.dtype(), self.nbytes())
    }
}
