//! The class `Channel`.

use super::loan::FrameLoan;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::export::dtype::dtype_object;
use crate::import::dtype;
use crate::import::source::SourceArray;
use crate::process::ProcessLocal;
use crate::store::report::report;
use crate::store::store::Store;
use cotensor::{DType, Error};
use cotensor_client::{Channel as ClientChannel, ChannelSpec};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// The producer's end of a channel. :meth:`Store.channel` makes it. Any thread may use it.
///
/// ``put`` publishes a copy of an array as the next frame. ``loan`` gives memory to write the next frame in place. Neither waits for
/// readers or for the daemon. The channel is closed by ``close()``, by the end of a ``with`` block, and with this object.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Channel(ProcessLocal<Arc<ClientChannel>>);

impl Channel {
    fn channel(&self, py: Python<'_>) -> PyResult<&Arc<ClientChannel>> {
        self.0.get(py, "channel")
    }
}

#[pymethods]
impl Channel {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.spec().name
    }

    /// Dimensions of each frame, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.spec().shape)
    }

    /// The name of the element type.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.0.spec().dtype)
    }

    /// Size of a frame in bytes.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.spec().size().or_raise(py)?.frame_bytes)
    }

    /// The number of the newest frame; 0 before the first one.
    #[getter]
    fn newest(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.channel(py)?.newest())
    }

    /// Publishes a copy of ``array``, which has the dtype and the shape of the channel, as the next frame. Returns the frame's number.
    fn put(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<u64> {
        let channel = self.channel(py)?;
        let source = SourceArray::of(array, &"array")?;
        let spec = channel.spec();
        source.fits(&spec.name, spec.dtype, &spec.shape).or_raise(py)?;
        let publish = || {
            let mut loan = channel.loan()?;
            match source.contiguous() {
                Some(bytes) => loan.write(bytes)?,
                None => source.copy_to(loan.bytes_mut()),
            }
            loan.publish()
        };
        py.detach(publish).or_raise(py)
    }

    /// Memory for the next frame, to write in place. Leaving a ``with`` block without an exception publishes it.
    fn loan(&self, py: Python<'_>) -> PyResult<FrameLoan> {
        FrameLoan::new(Arc::clone(self.channel(py)?)).or_raise(py)
    }

    /// Closes the channel: readers get the frames that are left, and then its end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let channel = self.channel(py)?;
        py.detach(|| channel.close());
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        let message =
            "a channel has one producer and cannot be pickled: other processes read it by Store.read_channel(name)";
        Err(raise(py, &Error::unsupported(message)))
    }

    fn __repr__(&self) -> String {
        let ChannelSpec { name, dtype, shape, slots, .. } = self.0.spec();
        format!("<Channel {name:?} {} {shape:?}, {slots} slots>", dtype.name())
    }
}

#[pymethods]
impl Store {
    /// Opens a channel as its producer: frames of one dtype and shape, which readers of other processes take without a copy. The name is
    /// apart from those of tensors.
    ///
    /// A reader can be ``slots`` frames behind without a loss; up to ``readers`` processes or threads read at a time, and each holds
    /// up to ``holds`` frames. ``slots + readers * holds + 3`` frames are allocated now, and count in the memory limit. Raises
    /// :class:`ConflictError` while another producer has the name.
    #[pyo3(signature = (name, shape, dtype=None, *, slots=4, readers=4, holds=2))]
    #[allow(clippy::too_many_arguments, reason = "options by keyword")]
    fn channel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::slots)] slots: u32,
        #[pyo3(from_py_with = args::readers)] readers: u32,
        #[pyo3(from_py_with = args::holds)] holds: u32,
    ) -> PyResult<Channel> {
        let store = self.client_store(py, "channels")?;
        let dtype = dtype.map_or(Ok(DType::F32), dtype::dtype)?;
        let spec = ChannelSpec { name, dtype, shape: dtype::shape(shape)?, slots, readers, holds };
        let opened = py.detach(|| store.channel(spec)).or_raise(py)?;
        Ok(Channel(ProcessLocal::new(Arc::new(opened))))
    }

    /// All channels of the daemon, as dicts: name, dtype, shape, bytes, producer, readers and frames.
    fn channels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.client_store(py, "channels")?;
        let channels = py.detach(|| store.channels()).or_raise(py)?;
        report(py, || serde_json::to_string(&channels))
    }
}
