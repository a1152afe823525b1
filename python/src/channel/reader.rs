//! The class `ChannelReader`.

use super::frame::Frame;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::export::dtype::dtype_object;
use crate::interrupt::{SignalCheck, seconds};
use crate::process::ProcessLocal;
use crate::store::store::Store;
use cotensor::{Error, ErrorKind};
use cotensor_client::{ChannelPolicy, ChannelReader as ClientReader, ClientStore};
use cotensor_core::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long one attempt to join a channel waits, before signals are handled.
const JOIN_INTERVAL: Duration = Duration::from_millis(100);

/// A reader's end of a channel. :meth:`Store.read_channel` makes it. An iterator over :class:`Frame`, which ends when the producer closes the
/// channel, also with ``async for``.
///
/// With the policy "newest", it takes the newest frame and skips older ones; with "queue", each one in order. ``lost`` counts frames that
/// it did not take. Raises :class:`IoError` when the producer ends without closing the channel.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct ChannelReader {
    name: String,
    /// None after `close()`.
    end: Mutex<Option<Arc<End>>>,
}

/// The reader, and the store of its frames.
type End = ProcessLocal<(ClientReader, Arc<ClientStore>)>;

impl ChannelReader {
    fn end(&self, py: Python<'_>) -> PyResult<Arc<End>> {
        let end = lock(&self.end).clone();
        let end = end.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this reader is closed")))?;
        end.get(py, "reader")?;
        Ok(end)
    }

    fn next(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<Frame>> {
        let end = self.end(py)?;
        let (reader, store) = &**end;
        let signals = SignalCheck::default();
        let interrupted = || Error::new(ErrorKind::Conflict, "interrupted by a signal");
        let check = || if signals.none_raised() { Ok(()) } else { Err(interrupted()) };
        let next = py.detach(|| reader.next_while(timeout, check));
        signals.result()?;
        next.or_raise(py)?.map(|frame| Frame::new(py, frame, Arc::clone(store) as Arc<_>)).transpose()
    }
}

#[pymethods]
impl ChannelReader {
    /// The channel's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions of each frame, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.end(py)?.0.spec().shape)
    }

    /// The name of the element type.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.end(py)?.0.spec().dtype)
    }

    /// The producer's name and process.
    #[getter]
    fn producer(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.end(py)?.0.producer().to_owned())
    }

    /// The number of frames that were published since this reader was opened and that it did not take.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.end(py)?.0.lost())
    }

    /// The next frame. Raises :class:`TimedOutError` after ``timeout`` seconds without one, and :class:`ConflictError` at the end of a
    /// channel that its producer has closed.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>) -> PyResult<Frame> {
        let timeout = seconds(py, timeout)?.unwrap_or(Duration::MAX);
        let closed = || {
            raise(py, &Error::new(ErrorKind::Conflict, format!("channel {:?} was closed by its producer", self.name)))
        };
        self.next(py, timeout)?.ok_or_else(closed)
    }

    /// The next frame, if there is one; ``None`` otherwise.
    fn try_get(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        let end = self.end(py)?;
        let (reader, store) = &**end;
        let next = reader.try_next().or_raise(py)?;
        next.map(|frame| Frame::new(py, frame, Arc::clone(store) as Arc<_>)).transpose()
    }

    /// Whether the producer may publish further frames. Raises :class:`IoError` when it has ended without closing the channel.
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        self.end(py)?.0.is_open().or_raise(py)
    }

    /// A descriptor that becomes readable when a frame or the end of the channel comes, for event loops. Read from it (8 bytes, not
    /// blocking), then call ``try_get`` until it returns ``None``. It is closed with the reader.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.end(py)?.0.descriptor().or_raise(py)?.as_raw_fd())
    }

    /// Closes the reader. Frames that it took stay valid. Threads and tasks that wait for a frame get a :class:`ConflictError`.
    fn close(&self, py: Python<'_>) {
        let end = lock(&self.end).take();
        if let Some(end) = end.filter(|end| end.is_ours()) {
            py.detach(|| {
                end.0.close();
                drop(end);
            });
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.next(py, Duration::MAX)
    }

    fn __aiter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("cotensor._frames")?.getattr("AsyncFrames")?.call1((slf,))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<ChannelReader of {:?}>", self.name)
    }
}

fn policy(py: Python<'_>, policy: &str) -> PyResult<ChannelPolicy> {
    match policy {
        "newest" => Ok(ChannelPolicy::Newest),
        "queue" => Ok(ChannelPolicy::Queue),
        other => {
            let message = format!("{other:?} is not a policy; use \"newest\" or \"queue\"");
            Err(raise(py, &Error::invalid(message).in_field("policy")))
        }
    }
}

#[pymethods]
impl Store {
    /// Opens the channel ``name`` as a reader. Waits up to ``timeout`` seconds for a producer to open it, by default not at all, and raises
    /// :class:`NotFoundError` without one.
    ///
    /// With ``policy="newest"``, the reader begins with the newest frame, and skips to the newest one each time; with
    /// ``policy="queue"``, it begins with the oldest frame of the channel's slots, and takes each one in order.
    #[pyo3(signature = (name, *, policy=None, timeout=None))]
    fn read_channel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        #[pyo3(from_py_with = args::policy)] policy: Option<String>,
        #[pyo3(from_py_with = args::timeout)] timeout: Option<f64>,
    ) -> PyResult<ChannelReader> {
        let store = self.client_store(py, "channels")?;
        let policy = self::policy(py, policy.as_deref().unwrap_or("newest"))?;
        let end = timeout.map_or(Ok(Some(Duration::ZERO)), |timeout| seconds(py, Some(timeout)))?;
        let (start, signals) = (Instant::now(), SignalCheck::default());
        let join = || loop {
            let left = end.map_or(JOIN_INTERVAL, |end| end.saturating_sub(start.elapsed()));
            match store.read_channel(&name, policy, left.min(JOIN_INTERVAL)) {
                Err(error) if error.kind() == ErrorKind::NotFound && !left.is_zero() && signals.none_raised() => {}
                reader => return reader,
            }
        };
        let reader = py.detach(join);
        signals.result()?;
        let end = Mutex::new(Some(Arc::new(ProcessLocal::new((reader.or_raise(py)?, store)))));
        Ok(ChannelReader { name, end })
    }
}
