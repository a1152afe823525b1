//! A tensor that is being written.

use crate::arrays::Kept;
use crate::dlpack::{self, Given};
use crate::errors::{OrRaise, raise};
use crate::modules::Torch;
use crate::process::Own;
use crate::source::Source;
use crate::tensor::{Tensor, check_dlpack, interface};
use cotensor::{Error, ErrorKind, Lease, Store};
use cotensor_core::Layout;
use cotensor_store::{CopyReason, Reservation};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of a tensor that nobody else sees yet, to be written in place: ``numpy.asarray(draft)``,
/// ``torch.from_dlpack(draft)``. ``publish()`` makes it immutable and visible; so does leaving a ``with`` block without an
/// exception.
///
/// Arrays that were made of it stay good after that. What they write then is their own: nobody else sees it.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Draft {
    name: String,
    layout: Layout,
    memory: Arc<Memory>,
    store: Own<Arc<dyn Store>>,
}

/// What arrays of Python's point into.
struct Memory {
    address: NonNull<u8>,
    content: Mutex<Content>,
    /// Whatever becomes of the content.
    _address: Kept,
}

enum Content {
    Open(Own<Reservation>),
    /// The memory stays as long as the lease; see [`Store::reserve_aliased`].
    Published(#[allow(dead_code, reason = "kept, not used")] Own<Lease>),
    /// Arrays may be left that still show the memory, so it is kept, unpublished.
    Discarded(#[allow(dead_code, reason = "kept, not used")] Own<Reservation>),
    /// A thread copies into it.
    Writing,
    Lost,
}

// SAFETY: an address and what keeps it; who writes there answers for it, as with any array.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Draft {
    pub(crate) fn new(mut reservation: Reservation, store: Arc<dyn Store>) -> Result<Self, Error> {
        let (name, layout) = (reservation.name().to_owned(), reservation.layout().clone());
        let bytes = reservation.bytes_mut().ok_or_else(|| Error::unsupported("the host cannot write this memory"))?;
        let address = NonNull::from(bytes).cast();
        let unkept = || Error::unsupported("the store's memory does not outlive its tensors");
        let _address = reservation.pin_address().ok_or_else(unkept)?;
        let content = Mutex::new(Content::Open(Own::new(reservation)));
        Ok(Self { name, layout, memory: Arc::new(Memory { address, content, _address }), store: Own::new(store) })
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.memory.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conflict(&self, py: Python<'_>, why: &str) -> PyErr {
        raise(py, &Error::new(ErrorKind::Conflict, format!("{}: {why}", self.name)))
    }

    /// The reservation; `meanwhile` is in its place until the caller says otherwise.
    fn take(&self, py: Python<'_>, meanwhile: Content) -> PyResult<Own<Reservation>> {
        let taken = {
            let mut content = self.content();
            match std::mem::replace(&mut *content, meanwhile) {
                Content::Open(reservation) if reservation.is_ours() => Ok(reservation),
                other => {
                    let why = other.why_not();
                    *content = other;
                    Err(why)
                }
            }
        };
        taken.map_err(|why| self.conflict(py, why))
    }
}

impl Content {
    /// Why it cannot be written or published.
    fn why_not(&self) -> &'static str {
        match self {
            Content::Open(_) => "it belongs to the process that this one was forked from",
            Content::Published(_) => "it is published already",
            Content::Discarded(_) => "it was discarded",
            Content::Writing => "another thread writes it",
            Content::Lost => "publishing it failed",
        }
    }
}

impl Draft {
    /// The reservation, for whoever publishes it in another way and then says so by [`keep`](Self::keep).
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Reservation> {
        Ok(self.take(py, Content::Lost)?.into_inner())
    }

    /// It is published: its memory stays as long as this lease.
    pub(crate) fn keep(&self, lease: &Lease) -> Result<(), Error> {
        *self.content() = Content::Published(Own::new(lease.try_clone()?));
        Ok(())
    }
}

#[pymethods]
impl Draft {
    /// The name that it will be published under.
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
    fn dtype(&self) -> &'static str {
        self.layout.dtype().name()
    }

    /// Bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.size_bytes()
    }

    /// The address of the first element.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.memory.address.as_ptr() as usize
    }

    /// Whether ``publish()`` was called.
    #[getter]
    fn published(&self) -> bool {
        matches!(*self.content(), Content::Published(_))
    }

    /// A numpy array on the memory, to be written. bfloat16 needs ml_dtypes.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        crate::arrays::as_numpy(slf.as_any(), slf.get().layout.dtype())
    }

    /// A torch tensor on the memory, to be written.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Torch::import(slf.py())?.from_dlpack.bind(slf.py()).call1((slf,))
    }

    /// Copies an array of the same dtype and shape into it.
    fn write(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(array, &"array")?;
        source.fits(&self.name, self.layout.dtype(), self.layout.shape()).or_raise(py)?;
        // Nothing stays locked while Python is let go of: others look at the draft meanwhile.
        let mut reservation = self.take(py, Content::Writing)?;
        let outcome = fill(py, &mut reservation, &source);
        *self.content() = Content::Open(reservation);
        outcome
    }

    /// Counts ``nbytes`` bytes that the caller copied into it, through an array made of it: every copy is counted.
    fn record_copy(&self, py: Python<'_>, nbytes: usize) -> PyResult<()> {
        let counted = match &*self.content() {
            Content::Open(reservation) if reservation.is_ours() => {
                reservation.record_copy(CopyReason::Put, nbytes);
                Ok(())
            }
            other => Err(other.why_not()),
        };
        counted.map_err(|why| self.conflict(py, why))
    }

    /// Makes it immutable and visible under its name: the tensor, leased.
    fn publish(&self, py: Python<'_>) -> PyResult<Tensor> {
        let reservation = self.open(py)?;
        let lease = py.detach(|| reservation.publish()).or_raise(py)?;
        self.keep(&lease).or_raise(py)?;
        Ok(Tensor::new(lease, Arc::clone(&self.store)))
    }

    /// Gives it up: it is never seen.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let reservation = self.take(py, Content::Lost)?;
        *self.content() = Content::Discarded(reservation);
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
        if !matches!(*self.content(), Content::Open(_)) {
            return Ok(());
        }
        if kind.is_none() { self.publish(py).map(drop) } else { self.discard(py) }
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, &self.layout, self.memory.address, false)
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
            let message = "a draft is written in place: a copy of it has no use";
            return Err(pyo3::exceptions::PyBufferError::new_err(message));
        }
        let keep = Arc::clone(&self.memory) as Kept;
        Given::new(self.memory.address, &self.layout, false, keep).into_capsule(py, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    fn __repr__(&self) -> String {
        let dims = self.layout.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let state = match &*self.content() {
            Content::Open(_) | Content::Writing => "being written",
            Content::Published(_) => "published",
            Content::Discarded(_) | Content::Lost => "discarded",
        };
        format!("<Draft {:?}, {}[{dims}], {} bytes, {state}>", self.name, self.layout.dtype(), self.nbytes())
    }
}

/// Copies an array into a reservation of the same dtype and shape, without Python.
pub(crate) fn fill(py: Python<'_>, reservation: &mut Reservation, source: &Source) -> PyResult<()> {
    let own = reservation.bytes().is_some_and(|target| source.overlaps(target));
    py.detach(|| match source.contiguous() {
        Some(bytes) if !own => reservation.write(bytes, CopyReason::Put),
        _ => {
            let target =
                reservation.bytes_mut().ok_or_else(|| Error::unsupported("the host cannot write this memory"))?;
            source.copy_to(target);
            reservation.record_copy(CopyReason::Put, source.len_bytes());
            Ok(())
        }
    })
    .or_raise(py)
}
