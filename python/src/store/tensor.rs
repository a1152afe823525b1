//! A leased tensor.

use super::index::slices;
use super::pickle::{self, Reduced};
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::{Buffer, DlpackRequest, KeepAlive};
use crate::export::device::{check_torch_cuda, not_on_host};
use crate::export::dtype::dtype_object;
use crate::export::numpy::as_array;
use crate::export::operators;
use crate::export::private_pages::PrivatePages;
use crate::export::tensor_mapping::TensorMapping;
use crate::held_lease::HeldLease;
use crate::import::gather;
use cotensor::{DType, Error, ErrorKind, Lease, Store};
use cotensor_core::Layout;
use cotensor_core::sync::lock;
use cotensor_store::{CopyReason, Members};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A leased tensor. This object and every array made from it keep the lease.
///
/// ``numpy()``, ``numpy.asarray``, ``torch()``, ``torch.from_dlpack`` and ``jax.numpy.from_dlpack`` show the shared
/// memory without a copy. A write in place, which torch allows for numpy's read-only arrays too, makes private copies
/// of the pages that it touches. Other processes and other ``Tensor`` objects do not see the write. ``private_bytes``
/// counts these pages.
///
/// An index of integers, slices and ``...`` returns a view on the same memory. The name of a group's member does so
/// too.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Tensor {
    pub(super) layout: Layout,
    /// `None` after `release()`. A view shares the pages of its tensor: each shows the writes of the other.
    pages: Mutex<Option<Arc<PrivatePages>>>,
    /// The lease, once code has the address by `__cuda_array_interface__`: its arrays keep this object, and not the lease.
    pub(super) shown: OnceLock<Arc<HeldLease>>,
}

operators::array_operators!(Tensor, contains = has);

/// # Errors
/// `Unsupported` for memory of a device.
fn check_host(held: &HeldLease) -> Result<(), Error> {
    let (name, device) = (held.lease().name(), held.device());
    if device.is_host() { Ok(()) } else { Err(not_on_host(name, device)) }
}

/// ``value in tensor``: whether a group has the member of that name, or another tensor an element of that value.
fn has(tensor: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(members) = tensor.cast::<Tensor>()?.get().group(value.py())? else {
        return operators::contains(tensor, value);
    };
    // Its bytes are those of the members, and no elements.
    let Ok(name) = value.cast::<PyString>() else { return Ok(false) };
    Ok(members.find(&name.to_cow()?).is_ok())
}

impl Tensor {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Self {
        Self::whole(HeldLease::new(lease, store))
    }

    /// A whole tensor, by its lease.
    pub(super) fn whole(held: Arc<HeldLease>) -> Self {
        let layout = held.lease().layout().clone();
        Self::part(PrivatePages::new(held), layout)
    }

    /// The elements of `layout` in these pages.
    pub(crate) fn part(pages: Arc<PrivatePages>, layout: Layout) -> Self {
        Self { layout, pages: Mutex::new(Some(pages)), shown: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<PrivatePages>>> {
        lock(&self.pages)
    }

    fn pages(&self, py: Python<'_>) -> PyResult<Arc<PrivatePages>> {
        // Unlocked before `raise`, which runs Python code.
        let pages = self.lock().clone();
        pages.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this tensor was released")))
    }

    /// The lease.
    ///
    /// # Errors
    /// `Conflict` after `release()`.
    pub(crate) fn held(&self, py: Python<'_>) -> PyResult<Arc<HeldLease>> {
        Ok(Arc::clone(self.pages(py)?.held()))
    }

    /// Whether this object shows the whole tensor with its published layout.
    pub(crate) fn is_whole(&self, held: &HeldLease) -> bool {
        *held.lease().layout() == self.layout
    }

    /// The members, if this object shows a whole group.
    pub(crate) fn group(&self, py: Python<'_>) -> PyResult<Option<Arc<Members>>> {
        let held = self.held(py)?;
        Ok(held.lease().spec().members.filter(|_| self.is_whole(&held)))
    }

    /// A member of a whole group.
    pub(super) fn member(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        let pages = self.pages(py)?;
        if !self.is_whole(pages.held()) {
            return Err(raise(py, &Error::invalid("a view has no members: take the member from the group")));
        }
        let layout = pages.held().lease().member_layout(name).or_raise(py)?;
        Ok(Self::part(pages, layout))
    }

    /// A read-only buffer of this view in one of the two mappings of its pages.
    fn in_mapping(&self, pages: &PrivatePages, mapping: &Arc<TensorMapping>) -> Buffer {
        let before = self.layout.offset_bytes() - pages.held().lease().layout().offset_bytes();
        let address = mapping.address().map_addr(|address| address.saturating_add(before));
        Buffer::read_only(address, self.layout.clone(), Arc::clone(mapping) as KeepAlive)
    }

    pub(super) fn numpy_buffer(&self, py: Python<'_>) -> PyResult<Buffer> {
        let pages = self.pages(py)?;
        check_host(pages.held()).or_raise(py)?;
        Ok(self.in_mapping(&pages, pages.numpy().or_raise(py)?))
    }

    fn dlpack_buffer(&self, py: Python<'_>) -> PyResult<Buffer> {
        let pages = self.pages(py)?;
        check_host(pages.held()).or_raise(py)?;
        Ok(self.in_mapping(&pages, pages.dlpack().or_raise(py)?))
    }

    /// A DLPack capsule on the shared memory, or of a copy.
    pub(crate) fn dlpack(&self, py: Python<'_>, request: &DlpackRequest) -> PyResult<Py<PyAny>> {
        let buffer = if request.copy { self.copied(py)? } else { self.dlpack_buffer(py)? };
        buffer.capsule(py, request.max_version)
    }

    /// A copy of the published elements in row-major order. The copy is counted.
    pub(super) fn copied(&self, py: Python<'_>) -> PyResult<Buffer> {
        let held = self.held(py)?;
        let len = self.layout.size_bytes();
        // Words of eight bytes align every element type.
        let mut words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let item = self.layout.dtype().size_bytes();
        let strides: Vec<isize> = self.layout.strides().iter().map(|stride| (stride * item) as isize).collect();
        let (segment, range) = (held.lease().segment(), self.layout.byte_range());
        let reason = match segment.bytes() {
            Some(bytes) => {
                // SAFETY: a layout's elements are inside its segment, which the lease keeps.
                unsafe {
                    gather(bytes[range.start..].as_ptr(), self.layout.shape(), &strides, item, &mut target[..len])
                };
                CopyReason::PrivateCopy
            }
            None if self.layout.is_contiguous() => {
                py.detach(|| segment.read_at(range.start, &mut target[..len])).or_raise(py)?;
                CopyReason::DeviceTransfer
            }
            None => {
                let mut span = vec![0; range.len()];
                py.detach(|| segment.read_at(range.start, &mut span)).or_raise(py)?;
                // SAFETY: the layout's elements are in `span`, from its first byte on.
                unsafe { gather(span.as_ptr(), self.layout.shape(), &strides, item, &mut target[..len]) };
                CopyReason::DeviceTransfer
            }
        };
        if let Some(store) = held.store() {
            store.record_copy(held.lease().name(), reason, len);
        }
        let layout = Layout::contiguous(self.layout.dtype(), self.layout.shape()).or_raise(py)?;
        let address = NonNull::from(&mut *words).cast();
        Ok(Buffer::copied(address, layout, Arc::new(words) as KeepAlive))
    }
}

#[pymethods]
impl Tensor {
    /// The published name.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().name().to_owned())
    }

    /// The version: 1 for the first publication of the name, and one more for each further one.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.lease().id().version)
    }

    /// The store's number of this version, for :meth:`Store.lease`.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let id = self.held(py)?.lease().id();
        Ok((id.name_id, id.version))
    }

    /// Dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// Strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.strides())
    }

    /// The element type's name, such as ``float32``.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_object(py, self.layout.dtype())
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

    /// Size of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.size_bytes()
    }

    /// The device that uses it: ``cpu``, or ``cuda:N`` by its number on the machine. :meth:`__dlpack_device__` has the number in this
    /// process. A tensor of ``store.get(name, device="cuda:1")`` may lie in the memory of another GPU.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.device().to_string())
    }

    /// The kind of memory: ``memfd``, ``slab``, ``mapped file``, ``heap`` or ``device``.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().segment().kind().to_string())
    }

    /// The kind of tensor, such as ``vision_embedding``.
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.held(py)?.lease().kind().name())
    }

    /// The dict that the publisher passed as ``metadata``; an empty one without.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let held = self.held(py)?;
        match held.lease().metadata() {
            Some(text) => py.import("json")?.call_method1("loads", (text,)),
            None => Ok(PyDict::new(py).into_any()),
        }
    }

    /// The name of the producer.
    #[getter]
    fn producer(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().producer().to_owned())
    }

    /// The name of this lease's holder.
    #[getter]
    fn holder(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.held(py)?.lease().holder().to_string())
    }

    /// The holders in this process, and the number of leases of each.
    #[getter]
    fn holders<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let holders = PyDict::new(py);
        for (name, count) in self.held(py)?.lease().holders() {
            holders.set_item(&*name, count)?;
        }
        Ok(holders)
    }

    /// 64 hexadecimal digits that identify the value: the provenance if it is known, else the content hash, computed
    /// once for each version. Equal identities mean equal values, dtypes and shapes.
    #[getter]
    fn identity(&self, py: Python<'_>) -> PyResult<String> {
        let held = self.held(py)?;
        if !self.is_whole(&held) {
            let message = "a view has no identity: put it into the store as a tensor first";
            return Err(raise(py, &Error::unsupported(message)));
        }
        Ok(py.detach(|| held.lease().identity().to_string()))
    }

    /// The address of the first element in the arrays of ``numpy()``; of a tensor on a device, for the device.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        if let Some(memory) = self.cuda(py)? {
            return Ok(self.device_buffer(py, memory)?.address().as_ptr() as usize);
        }
        Ok(self.numpy_buffer(py)?.address().as_ptr() as usize)
    }

    /// Bytes of the pages that arrays of this object have written in place. Each is a private copy.
    #[getter]
    fn private_bytes(&self) -> u64 {
        let pages = self.lock().clone();
        pages.map_or(0, |pages| pages.private_bytes())
    }

    /// Whether ``release()`` was called.
    #[getter]
    fn released(&self) -> bool {
        self.lock().is_none()
    }

    /// A read-only numpy array on the shared memory, without a copy. bfloat16 needs ml_dtypes. Raises :class:`UnsupportedError` for a
    /// tensor on a device, which :meth:`copy_to` and :meth:`detach` copy to the host.
    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy_buffer(py)?.numpy(py)
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

    /// A torch tensor on the shared memory, without a copy. A write in place makes private copies of the pages it
    /// touches. Of a tensor on a GPU, it is on that GPU, and a write in place fails.
    pub(crate) fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(memory) = self.cuda(py)? {
            check_torch_cuda(py)?;
            return self.device_buffer(py, memory)?.torch(py);
        }
        self.dlpack_buffer(py)?.torch(py)
    }

    /// A JAX array on the shared memory.
    fn jax<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("jax.numpy")?.call_method1("from_dlpack", (slf,))
    }

    /// Called by ``jax.numpy.asarray``.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::jax(slf)
    }

    /// A copy of the elements in row-major order.
    pub(super) fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let copy = self.copied(py)?;
        let len = self.layout.size_bytes();
        // SAFETY: `copied` allocates `len` bytes, and `copy` owns them.
        Ok(PyBytes::new(py, unsafe { std::slice::from_raw_parts(copy.address().as_ptr(), len) }))
    }

    /// Releases this object's lease now. Arrays made from it stay valid and keep the memory. Arrays made by
    /// ``__cuda_array_interface__`` keep this object only, so that it keeps its lease until its own end after that was read.
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
            .ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = index.py();
        if let Ok(member) = index.cast::<PyString>() {
            return self.member(py, &member.to_cow()?);
        }
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
        Ok(Self::part(pages, layout))
    }

    /// The members of a group by name, in the order of publication: views that show the memory of this object. Empty
    /// for a plain tensor and for a view.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (pages, members) = (self.pages(py)?, PyDict::new(py));
        let lease = pages.held().lease();
        for member in lease.members().filter(|_| self.is_whole(pages.held())).into_iter().flat_map(Members::iter) {
            let layout = lease.member_layout(member.name()).or_raise(py)?;
            members.set_item(member.name(), Self::part(Arc::clone(&pages), layout))?;
        }
        Ok(members)
    }

    /// A view of this tensor's bytes as another type: ``shape`` elements of ``dtype``, with ``strides`` in elements
    /// (row-major by default), from ``offset`` bytes after this tensor's first element. This tensor has to be
    /// contiguous.
    #[pyo3(signature = (offset, dtype, shape, strides=None))]
    fn view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::offset)] offset: usize,
        #[pyo3(from_py_with = args::dtype)] dtype: String,
        #[pyo3(from_py_with = args::shape)] shape: Vec<usize>,
        #[pyo3(from_py_with = args::strides)] strides: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let pages = self.pages(py)?;
        let layout = || {
            let dtype: DType = dtype.parse().map_err(|error: Error| error.in_field("dtype"))?;
            if !self.layout.is_contiguous() {
                return Err(Error::unsupported("this tensor is not contiguous: take the view from the whole tensor"));
            }
            let own = self.layout.byte_range();
            let strides = match strides {
                Some(strides) => strides,
                None => Layout::contiguous(dtype, &shape)?.strides().to_vec(),
            };
            let start = own.start.checked_add(offset).filter(|start| *start <= own.end);
            let layout = start.map(|start| Layout::strided(dtype, &shape, &strides, start)).transpose()?;
            let inside = layout.filter(|layout| layout.is_empty() || layout.byte_range().end <= own.end);
            inside.ok_or_else(|| Error::invalid(format!("the view exceeds the tensor of {} bytes", own.len())))
        };
        let layout = layout().or_raise(py)?;
        Ok(Self::part(pages, layout))
    }

    /// Pickles a handle for other processes of this user. It holds no lease.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        pickle::reduce_tensor(py, &*self.held(py)?, &self.layout)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let dims = self.layout.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let elements = format!("{}[{dims}], {} bytes", self.layout.dtype(), self.layout.size_bytes());
        let Ok(held) = self.held(py) else { return Ok(format!("<Tensor {elements}, released>")) };
        let lease = held.lease();
        let holders = lease.holders().into_iter();
        let holders = holders.map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ");
        let view = if self.is_whole(&held) { "" } else { "view of " };
        let elements = match lease.members().filter(|_| self.is_whole(&held)) {
            Some(members) => format!("group of {}, {} bytes", members.len(), self.layout.size_bytes()),
            None => elements,
        };
        let (name, version, device) = (lease.name(), lease.id().version, held.device());
        Ok(format!("<Tensor {view}{name:?} version {version}, {elements}, {device}, held by {{{holders}}}>"))
    }
}
