//! A leased tensor.

use crate::arg;
use crate::dlpack::{self, Given};
use crate::errors::{OrRaise, raise};
use crate::handle::{self, Reduced};
use crate::index::slices;
use crate::modules::Torch;
use crate::window::{self, Held, Pages, Writable};
use cotensor::{DType, Error, ErrorKind, Lease, Store};
use cotensor_core::Layout;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A tensor of a store, leased: it stays as long as this object, or an array made of it, does.
///
/// ``numpy()``, ``numpy.asarray``, ``torch()``, ``torch.from_dlpack`` and ``jax.numpy.from_dlpack`` show the shared memory, without
/// a copy. A write in place, which torch allows for numpy's arrays too, makes private copies of the pages that it touches: other
/// processes, and other ``Tensor`` objects, never see it, and it is counted (``written_bytes``).
///
/// Indexing with integers, slices and ``...`` gives a window on the same memory.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Tensor {
    layout: Layout,
    /// Until it is released. A window has those of its tensor: it shows what is written through the other.
    pages: Mutex<Option<Arc<Pages>>>,
}

/// The base of numpy's arrays: it keeps the lease and the pages, also after the `Tensor` is gone.
#[pyclass(frozen, module = "cotensor")]
struct Shown {
    layout: Layout,
    address: NonNull<u8>,
    _writable: Arc<Writable>,
}

// SAFETY: an address and what keeps it; code that writes there answers for it, as with any array.
unsafe impl Send for Shown {}
// SAFETY: as above.
unsafe impl Sync for Shown {}

#[pymethods]
impl Shown {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, &self.layout, self.address, true)
    }
}

impl Tensor {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Self {
        Self::over(Held::new(lease, store))
    }

    /// All of a tensor that is leased already.
    pub(crate) fn over(held: Arc<Held>) -> Self {
        let layout = held.lease().layout().clone();
        Self::over_part(Pages::new(held), layout)
    }

    /// A part of a tensor, which shows these pages.
    pub(crate) fn over_part(pages: Arc<Pages>, layout: Layout) -> Self {
        Self { layout, pages: Mutex::new(Some(pages)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Pages>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self, py: Python<'_>) -> PyResult<Arc<Pages>> {
        // Unlocked before an exception is made, which runs Python.
        let pages = self.lock().clone();
        pages.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this tensor was released")))
    }

    /// The lease, unless it was released.
    pub(crate) fn held(&self, py: Python<'_>) -> PyResult<Arc<Held>> {
        Ok(Arc::clone(self.pages(py)?.held()))
    }

    /// Whether it is all of its tensor, as it was published.
    pub(crate) fn is_whole(&self, held: &Held) -> bool {
        *held.lease().layout() == self.layout
    }

    /// The first byte of this window in pages of the tensor.
    fn address_in(&self, pages: &Pages, writable: &Writable) -> NonNull<u8> {
        let before = self.layout.offset_bytes() - pages.held().lease().layout().offset_bytes();
        writable.address().map_addr(|address| address.saturating_add(before))
    }

    /// What numpy's arrays show: the first byte, and the pages that it is in.
    fn of_numpy(&self, py: Python<'_>) -> PyResult<(NonNull<u8>, Arc<Writable>)> {
        let pages = self.pages(py)?;
        let writable = pages.of_numpy().or_raise(py)?;
        Ok((self.address_in(&pages, writable), Arc::clone(writable)))
    }

    /// Where the published bytes of this window begin.
    fn published(&self, held: &Held) -> NonNull<u8> {
        let bytes = held.lease().segment().bytes().unwrap_or_default();
        NonNull::from(bytes).cast::<u8>().map_addr(|address| address.saturating_add(self.layout.offset_bytes()))
    }

    fn given(&self, address: NonNull<u8>, keep: crate::arrays::Kept) -> Given {
        Given::new(address, &self.layout, true, keep)
    }

    fn copied(&self, held: &Held) -> Given {
        let len = self.layout.size_bytes();
        let mut words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let item = self.layout.dtype().size_bytes();
        let strides: Vec<isize> = self.layout.strides().iter().map(|stride| (stride * item) as isize).collect();
        // SAFETY: a layout's elements lie inside its segment, which the lease keeps.
        unsafe {
            let from = self.published(held).as_ptr();
            crate::gather::gather(from, self.layout.shape(), &strides, item, &mut target[..len]);
        }
        let strides =
            Layout::contiguous(self.layout.dtype(), self.layout.shape()).map(|layout| layout.strides().to_vec());
        let address = NonNull::from(&mut *words).cast();
        if let Some(store) = held.store() {
            store.record_copy(held.lease().name(), cotensor_store::CopyReason::PrivateCopy, len);
        }
        let strides = strides.unwrap_or_default();
        let keep = Arc::new(words) as crate::arrays::Kept;
        Given { strides, read_only: false, copied: true, ..self.given(address, keep) }
    }
}

#[pymethods]
impl Tensor {
    /// The name that it was published under.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().name().to_owned())
    }

    /// Counts up from 1 with every publication of the name.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.lease().id().version)
    }

    /// Which version of which name, as the store numbers them: for :meth:`Store.lease`.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let id = self.held(py)?.lease().id();
        Ok((id.slot, id.version))
    }

    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// Distances between neighbours along each dimension, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.strides())
    }

    /// The element type's name, such as ``float32``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.layout.dtype().name()
    }

    /// Number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape().len()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.layout.len()
    }

    /// Bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.size_bytes()
    }

    /// Where it lies: ``cpu``.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().segment().device().to_string())
    }

    /// Which memory it lies in: ``memfd``, ``slab``, ``mapped file`` or ``heap``.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().segment().kind().to_string())
    }

    /// What it means, such as ``vision_embedding``.
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.held(py)?.lease().kind().name())
    }

    /// Who made it.
    #[getter]
    fn producer(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().producer().to_owned())
    }

    /// Under whose name it is leased here.
    #[getter]
    fn holder(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().holder().to_string())
    }

    /// Who leases it in this process, and how often.
    #[getter]
    fn holders<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let holders = PyDict::new(py);
        for (name, count) in self.held(py)?.lease().holders() {
            holders.set_item(&*name, count)?;
        }
        Ok(holders)
    }

    /// What the value is, in 64 hexadecimal digits: by how it was made where that is known, else its content hashed, once
    /// for each version. Equal identities are equal values, dtypes and shapes.
    #[getter]
    fn identity(&self, py: Python<'_>) -> PyResult<String> {
        let held = self.held(py)?;
        if !self.is_whole(&held) {
            let message = "a window has no identity of its own: put it as a tensor first";
            return Err(raise(py, &Error::unsupported(message)));
        }
        Ok(py.detach(|| held.lease().identity().to_string()))
    }

    /// The address of the first element, as ``numpy()`` shows it.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.of_numpy(py)?.0.as_ptr() as usize)
    }

    /// Bytes of the pages that arrays of this object have written in place; each is a private copy.
    #[getter]
    fn written_bytes(&self) -> u64 {
        let pages = self.lock().clone();
        pages.map_or(0, |pages| pages.written_bytes())
    }

    /// Whether ``release()`` was called.
    #[getter]
    fn released(&self) -> bool {
        self.lock().is_none()
    }

    /// A numpy array on the shared memory, read-only: no copy. bfloat16 needs ml_dtypes.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, tensor) = (slf.py(), slf.get());
        let (address, writable) = tensor.of_numpy(py)?;
        let shown = Shown { layout: tensor.layout.clone(), address, _writable: writable };
        crate::arrays::as_numpy(Bound::new(py, shown)?.as_any(), tensor.layout.dtype())
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        crate::arrays::as_array(&Self::numpy(slf)?, dtype, copy)
    }

    /// A torch tensor on the shared memory. Pages that are written in place become private copies.
    pub(crate) fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // The capsule without a read-only flag: the pages are the reader's as soon as they are written.
        let capsule = slf.get().capsule(slf.py(), None, false)?;
        Torch::import(slf.py())?.from_dlpack.bind(slf.py()).call1((capsule,))
    }

    /// A JAX array on the shared memory.
    fn jax<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("jax.numpy")?.call_method1("from_dlpack", (slf,))
    }

    /// What ``jax.numpy.asarray`` asks for.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::jax(slf)
    }

    /// The bytes of the elements, copied out in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let held = self.held(py)?;
        let given = self.copied(&held);
        let len = self.layout.size_bytes();
        // SAFETY: `copied` made as many bytes, and `given` keeps them.
        Ok(PyBytes::new(py, unsafe { std::slice::from_raw_parts(given.address.as_ptr(), len) }))
    }

    /// Gives this object's lease back now. Arrays that were made of it stay good, and keep the memory.
    fn release(&self) {
        let pages = self.lock().take();
        drop(pages);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.release();
    }

    fn __len__(&self) -> PyResult<usize> {
        self.layout
            .shape()
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("a tensor of no dimensions has no length"))
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = index.py();
        let pages = self.pages(py)?;
        let (slices, dropped) = slices(index, self.layout.shape())?;
        let mut layout = self.layout.view(&slices).or_raise(py)?;
        if dropped.iter().any(|&dropped| dropped) {
            let kept = |values: &[usize]| -> Vec<usize> {
                values.iter().zip(&dropped).filter(|(_, dropped)| !**dropped).map(|(value, _)| *value).collect()
            };
            let (shape, strides) = (kept(layout.shape()), kept(layout.strides()));
            layout = Layout::strided(layout.dtype(), &shape, &strides, layout.offset_bytes()).or_raise(py)?;
        }
        Ok(Self::over_part(pages, layout))
    }

    /// A window of another type: ``shape`` elements of ``dtype``, the first of them ``offset`` bytes from this one's first, and
    /// ``strides`` elements apart along each dimension (row by row without). This tensor's own elements have to lie side by side.
    #[pyo3(signature = (offset, dtype, shape, strides=None))]
    fn window(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arg::offset)] offset: usize,
        #[pyo3(from_py_with = arg::dtype)] dtype: String,
        #[pyo3(from_py_with = arg::shape)] shape: Vec<usize>,
        #[pyo3(from_py_with = arg::strides)] strides: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let pages = self.pages(py)?;
        let layout = || {
            let dtype: DType = dtype.parse().map_err(|error: Error| error.in_field("dtype"))?;
            if !self.layout.is_contiguous() {
                return Err(Error::unsupported("this tensor's elements do not lie side by side"));
            }
            let own = self.layout.byte_range();
            let strides = match strides {
                Some(strides) => strides,
                None => Layout::contiguous(dtype, &shape)?.strides().to_vec(),
            };
            let start = own.start.checked_add(offset).filter(|start| *start <= own.end);
            let layout = start.map(|start| Layout::strided(dtype, &shape, &strides, start)).transpose()?;
            let inside = layout.filter(|layout| layout.is_empty() || layout.byte_range().end <= own.end);
            inside.ok_or_else(|| Error::invalid(format!("the window ends outside the {} bytes", own.len())))
        };
        let layout = layout().or_raise(py)?;
        Ok(Self::over_part(pages, layout))
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
        self.capsule(py, max_version, copy.unwrap_or(false))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    /// A handle, for other processes of this user: it holds no lease.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        handle::of_tensor(py, &*self.held(py)?, &self.layout)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let dims = self.layout.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let what = format!("{}[{dims}], {} bytes", self.layout.dtype(), self.layout.size_bytes());
        let Ok(held) = self.held(py) else { return Ok(format!("<Tensor {what}, released>")) };
        let lease = held.lease();
        let holders = lease.holders().into_iter();
        let holders = holders.map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ");
        let window = if self.is_whole(&held) { "" } else { "a window on " };
        let (name, version, device) = (lease.name(), lease.id().version, lease.segment().device());
        Ok(format!("<Tensor {window}{name:?} version {version}, {what}, {device}, held by {{{holders}}}>"))
    }
}

impl Tensor {
    fn capsule(&self, py: Python<'_>, max_version: Option<(u32, u32)>, copy: bool) -> PyResult<Py<PyAny>> {
        if copy {
            let held = self.held(py)?;
            return self.copied(&held).into_capsule(py, max_version);
        }
        let pages = self.pages(py)?;
        let writable = Arc::clone(pages.of_dlpack().or_raise(py)?);
        let address = self.address_in(&pages, &writable);
        self.given(address, writable as crate::arrays::Kept).into_capsule(py, max_version)
    }
}

/// The published tensor that memory of this process shows, as bytes in a mapping of their own, and how far into it the ``nbytes``
/// at ``address`` begin. None for other memory, and where a page of them was written in place.
#[pyfunction]
pub(crate) fn published_at(py: Python<'_>, address: usize, nbytes: usize) -> PyResult<Option<(Tensor, usize)>> {
    let Some((held, offset)) = py.detach(|| window::published_at(address, nbytes)) else { return Ok(None) };
    let bytes = held.lease().layout().byte_range();
    let layout = Layout::strided(DType::U8, &[bytes.len()], &[1], bytes.start).or_raise(py)?;
    Ok(Some((Tensor::over_part(Pages::new(held), layout), offset)))
}

/// What numpy's array interface says of memory.
pub(crate) fn interface<'py>(
    py: Python<'py>,
    layout: &Layout,
    address: NonNull<u8>,
    read_only: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let item = layout.dtype().size_bytes();
    let code = match layout.dtype() {
        DType::Bool => 'b',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        // numpy has no bfloat16: its bits, as they are.
        DType::BF16 => 'u',
        _ => 'f',
    };
    let order = if item == 1 { '|' } else { '<' };
    let described = PyDict::new(py);
    described.set_item("version", 3)?;
    described.set_item("typestr", format!("{order}{code}{item}"))?;
    described.set_item("shape", PyTuple::new(py, layout.shape())?)?;
    described.set_item("strides", PyTuple::new(py, layout.strides().iter().map(|stride| stride * item))?)?;
    described.set_item("data", (address.as_ptr() as usize, read_only))?;
    Ok(described)
}

/// What a consumer of a capsule may ask for: the host, and no stream.
pub(crate) fn check_dlpack(stream: Option<&Bound<'_, PyAny>>, device: Option<(i32, i32)>) -> PyResult<()> {
    if device.is_some_and(|(kind, _)| kind != dlpack::CPU) {
        return Err(PyBufferError::new_err("this tensor lies on the host: dl_device has to be (1, 0)"));
    }
    // The specification has -1 and None mean that there is nothing to wait for.
    let none = stream.is_none_or(|stream| stream.is_none() || stream.extract::<i64>().is_ok_and(|stream| stream == -1));
    if none { Ok(()) } else { Err(PyBufferError::new_err("memory of the host has no streams")) }
}
