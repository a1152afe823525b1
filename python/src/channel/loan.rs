//! The class `FrameLoan`.

use crate::errors::OrRaise;
use crate::export::buffer::{Buffer, DlpackRequest, KeepAlive};
use crate::export::dtype::dtype_object;
use crate::export::numpy::as_array;
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind};
use cotensor_client::{Channel, FrameLoan as ClientLoan};
use cotensor_core::Layout;
use cotensor_core::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The next frame of a channel, to write in place: ``numpy.asarray(loan)``, ``torch.from_dlpack(loan)``. It has bytes of earlier frames.
/// ``publish()`` makes it visible to readers. So does leaving a ``with`` block without an exception.
///
/// Without arrays on it, it is published as it is. If some are left, a copy of it is published, because they could write the frame
/// later: drop them before, or reuse one variable, to save that copy.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct FrameLoan {
    channel: ProcessLocal<Arc<Channel>>,
    layout: Layout,
    memory: Mutex<State>,
}

enum State {
    Open(Arc<LoanMemory>),
    Ended(&'static str),
}

/// The memory, which arrays keep.
struct LoanMemory {
    address: NonNull<u8>,
    loan: ProcessLocal<ClientLoan>,
}

// SAFETY: an address and its owner; code that writes there is responsible for races, as with any array.
unsafe impl Send for LoanMemory {}
// SAFETY: as above.
unsafe impl Sync for LoanMemory {}

impl FrameLoan {
    pub(super) fn new(channel: Arc<Channel>) -> Result<Self, Error> {
        let spec = channel.spec();
        let layout = Layout::contiguous(spec.dtype, &spec.shape)?;
        let mut loan = channel.loan()?;
        let address = NonNull::from(loan.bytes_mut()).cast();
        let memory = Mutex::new(State::Open(Arc::new(LoanMemory { address, loan: ProcessLocal::new(loan) })));
        Ok(Self { channel: ProcessLocal::new(channel), layout, memory })
    }

    fn take(&self, why: &'static str) -> Result<Arc<LoanMemory>, Error> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Ended(why)) {
            State::Open(memory) => Ok(memory),
            State::Ended(before) => {
                *state = State::Ended(before);
                Err(ended(before))
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.memory)
    }

    fn buffer(&self, py: Python<'_>) -> PyResult<Buffer> {
        let memory = match &*self.lock() {
            State::Open(memory) => Ok(Arc::clone(memory)),
            State::Ended(why) => Err(ended(why)),
        };
        let memory = memory.or_raise(py)?;
        Ok(Buffer::writable(memory.address, self.layout.clone(), memory as KeepAlive))
    }

    fn publish_taken(&self, memory: Arc<LoanMemory>) -> Result<u64, Error> {
        match Arc::try_unwrap(memory) {
            Ok(LoanMemory { loan, .. }) => loan.into_inner().publish(),
            Err(shown) => {
                let published = self.publish_copy(&shown);
                if published.is_err() {
                    // Without its arrays, it can be published later.
                    *self.lock() = State::Open(shown);
                }
                published
            }
        }
    }

    fn publish_copy(&self, shown: &LoanMemory) -> Result<u64, Error> {
        let mut copy = self.channel.loan()?;
        // SAFETY: the address is that of the loan's bytes, as many as the layout has, which `shown` keeps. Arrays write them without a
        // lock, as with any array that is copied meanwhile; another loan has other bytes.
        let bytes = unsafe { std::slice::from_raw_parts(shown.address.as_ptr(), self.layout.size_bytes()) };
        copy.write(bytes)?;
        copy.publish()
    }
}

#[pymethods]
impl FrameLoan {
    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// The name of the element type.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.layout.dtype())
    }

    /// A writable numpy array on the memory. bfloat16 needs ml_dtypes.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.buffer(py)?.numpy(py)
    }

    /// A torch tensor on the memory.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.buffer(py)?.torch(py)
    }

    /// Publishes the frame. Returns its number.
    fn publish(&self, py: Python<'_>) -> PyResult<u64> {
        self.channel.get(py, "frame")?;
        let memory = self.take("already published").or_raise(py)?;
        py.detach(|| self.publish_taken(memory)).or_raise(py)
    }

    /// Gives the memory back without a frame. Does nothing for a frame that was published or discarded.
    fn discard(&self) {
        drop(self.take("discarded"));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (exception=None, *_rest))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: Option<&Bound<'_, PyAny>>,
        _rest: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let is_open = matches!(&*self.lock(), State::Open(_));
        match exception {
            Some(_) => self.discard(),
            None if is_open => drop(self.publish(py)?),
            None => {}
        }
        Ok(())
    }

    /// Not `__array_interface__`: an array by that would keep this object, and not the memory.
    #[pyo3(signature = (dtype=None, *, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        as_array(&self.numpy(py)?, dtype, copy)
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
        DlpackRequest::new(stream, max_version, dl_device, copy)?.of_unpublished(py, self.buffer(py)?)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        crate::dlpack::abi::HOST
    }

    fn __repr__(&self) -> String {
        let state = match &*self.lock() {
            State::Open(_) => "not published",
            State::Ended(why) => why,
        };
        format!("<FrameLoan {:?} {:?}, {state}>", self.layout.dtype().name(), self.layout.shape())
    }
}

/// An error for a loan that was published or discarded.
fn ended(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("this frame is {why}"))
}
