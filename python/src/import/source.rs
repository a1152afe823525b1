//! An array of another library: its description, and the copy of its elements into a tensor.

use super::dtype::numpy_dtype;
use super::gather::gather;
use super::host_copy::host_copy;
use super::refusal::refusal;
use crate::dlpack::abi::{CPU, device_of, is_host};
use crate::dlpack::from_capsule::{self, Imported};
use crate::errors::{OrRaise, raise};
use crate::export::tensor_mapping::lease_at;
use crate::held_lease::HeldLease;
use crate::imports::{Numpy, Torch};
use cotensor::{DType, Error};
use cotensor_core::{ContentHash, Layout};
use cotensor_store::{CopyReason, Reservation};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fmt::Display;
use std::sync::Arc;

/// An array of another library in host memory, kept alive.
pub(crate) struct SourceArray {
    address: usize,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
    /// Whether this is a copy of an array in device memory.
    from_device: bool,
    /// Whether the array does not allow writes, or this is a copy of it, as of a list.
    pub(crate) read_only: bool,
    _keep: KeepAlive,
}

enum KeepAlive {
    Object(#[allow(dead_code, reason = "an owner")] Py<PyAny>),
    Capsule(#[allow(dead_code, reason = "an owner")] Imported),
}

// SAFETY: `Imported` has a raw address and an owner that any thread may drop; the bytes are only read.
unsafe impl Send for KeepAlive {}
// SAFETY: as above.
unsafe impl Sync for KeepAlive {}

impl SourceArray {
    /// Describes a numpy array or an array with `__dlpack__` (torch, JAX, …). Numbers and lists become numpy arrays
    /// first.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported`, with `place` as the field: the argument that the array came from.
    pub(crate) fn of(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        if let Some(found) = Self::of_numpy(array, place)? {
            return Ok(found);
        }
        if array.hasattr("__dlpack__")? {
            return Self::of_dlpack(array, place);
        }
        let plain = array.is_instance_of::<pyo3::types::PyList>()
            || array.is_instance_of::<pyo3::types::PyTuple>()
            || array.is_instance_of::<pyo3::types::PyFloat>()
            || array.is_instance_of::<pyo3::types::PyInt>()
            || array.is_instance_of::<pyo3::types::PyBool>();
        if plain {
            let made = Numpy::import(py)?.asarray.bind(py).call1((array,))?;
            if let Some(found) = Self::of_numpy(&made, place)? {
                return Ok(Self { read_only: true, ..found });
            }
        }
        let name = array.get_type().fully_qualified_name()?.to_string();
        let dict = if array.is_instance_of::<pyo3::types::PyDict>() {
            "; put_many, put_group and cotensor.torch.publish take dicts of arrays"
        } else {
            ""
        };
        let message = format!("{name} is not an array: it is not numpy's and has no __dlpack__{dict}");
        Err(raise(py, &Error::invalid(message).in_field(place.to_string())))
    }

    /// Like [`of`](Self::of). With `from_device`, an array in device memory is copied to the host first.
    pub(crate) fn of_any_device(array: &Bound<'_, PyAny>, from_device: bool, place: &dyn Display) -> PyResult<Self> {
        match if from_device { host_copy(array)? } else { None } {
            Some(copy) => Ok(Self { from_device, read_only: true, ..Self::of(&copy, place)? }),
            None => Self::of(array, place),
        }
    }

    /// A numpy array by its array interface. Scalars become arrays first, because their memory moves.
    fn of_numpy(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Option<Self>> {
        let py = array.py();
        let Some(numpy) = Numpy::imported(py)? else { return Ok(None) };
        let is_scalar = array.is_instance(numpy.generic.bind(py))?;
        let array = if is_scalar { numpy.asarray.bind(py).call1((array,))? } else { array.clone() };
        if !array.is_instance(numpy.ndarray.bind(py))? {
            return Ok(None);
        }
        if !array.get_type().is(&numpy.ndarray) && array.hasattr("mask")? {
            let message = "a masked array would lose its mask: share its data and its mask, or filled()";
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        let dtype =
            numpy_dtype(&array.getattr("dtype")?)?.map_err(|error| raise(py, &error.in_field(place.to_string())))?;
        let interface = array.getattr("__array_interface__")?.cast_into::<PyDict>()?;
        let field = |name: &str| interface.get_item(name);
        let missing = || raise(py, &Error::invalid("an array without memory").in_field(place.to_string()));
        let (address, read_only): (usize, bool) = field("data")?.ok_or_else(missing)?.extract()?;
        let shape: Vec<usize> = field("shape")?.ok_or_else(missing)?.extract()?;
        let strides: Vec<isize> = array.getattr("strides")?.extract()?;
        let read_only = read_only || is_scalar;
        let _keep = KeepAlive::Object(array.unbind());
        Ok(Some(Self { address, dtype, shape, strides, from_device: false, read_only, _keep }))
    }

    fn of_dlpack(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        let refused = |error: PyErr| refusal(array, place, error);
        // torch.Tensor.__dlpack__ takes several times as long as torch.utils.dlpack.to_dlpack.
        let torch = Torch::imported(py)?.filter(|torch| torch.is_plain(array));
        let torch = match torch {
            Some(torch) if array.getattr(intern!(py, "is_cpu"))?.is_truthy()? => Some(torch),
            _ => None,
        };
        let (kind, number) = if torch.is_some() { (CPU, 0) } else { device_of(array).map_err(refused)? };
        if !is_host(kind) {
            let message = format!(
                "the array is on device {number} of DLPack kind {kind}, and only put() and write() take device memory, \
                 of CUDA: copy it to the host first, or pass from_device=True"
            );
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        let (shared, array) = resolved(array)?;
        let is_writable = torch.is_some() && array.is(&shared);
        // Capsules of floats of 8 bits need a newer torch than the types themselves.
        let small = match torch {
            Some(_) => small_float(&array.getattr(intern!(py, "dtype"))?)?,
            None => None,
        };
        let array = match small {
            Some(_) => array.call_method1(intern!(py, "view"), (py.import("torch")?.getattr("uint8")?,))?,
            None => array,
        };
        let taken = match torch {
            Some(torch) => torch.to_dlpack.bind(py).call1((&array,)).and_then(|capsule| from_capsule::open(&capsule)),
            None => from_capsule::take(&array),
        };
        let taken = taken.map_err(refused)?;
        let (address, dtype) = (taken.address as usize, small.unwrap_or(taken.dtype));
        let (shape, strides) = (taken.shape.clone(), taken.strides.clone());
        let read_only = !is_writable;
        Ok(Self { address, dtype, shape, strides, from_device: false, read_only, _keep: KeepAlive::Capsule(taken) })
    }

    /// # Errors
    /// `Invalid` unless dtype and shape are those of the tensor `name`.
    pub(crate) fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), Error> {
        check_fits((self.dtype, &self.shape), name, (dtype, shape))
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// The elements as bytes, if they are contiguous in row-major order.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        if self.len_bytes() == 0 {
            return Some(&[]);
        }
        if !is_row_major(&self.shape, &self.strides, self.dtype.size_bytes()) {
            return None;
        }
        // SAFETY: by its own description the array has its elements there, side by side, and `_keep` owns them. The
        // caller must not write them during the call, as with every function that takes an array.
        Some(unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len_bytes()) })
    }

    /// The published tensor of which this is the whole, if no element was written in place.
    pub(crate) fn tensor(&self) -> Option<Arc<HeldLease>> {
        let held = lease_at(self.address)?;
        let lease = held.lease();
        let same = lease.dtype() == self.dtype && lease.shape() == self.shape && lease.layout().is_contiguous();
        (same && self.contiguous().is_some()).then_some(held)
    }

    /// The content hash: equal to [`Lease::identity`](cotensor::Lease::identity) of a tensor with the same bytes.
    pub(crate) fn identity(&self, py: Python<'_>) -> PyResult<ContentHash> {
        let layout = Layout::contiguous(self.dtype, &self.shape).or_raise(py)?;
        Ok(py.detach(|| match self.contiguous() {
            Some(bytes) => layout.identity(bytes),
            None => {
                let mut bytes = vec![0; self.len_bytes()];
                self.copy_to(&mut bytes);
                layout.identity(&bytes)
            }
        }))
    }

    /// Whether an element is within these bytes.
    pub(crate) fn overlaps(&self, bytes: &[u8]) -> bool {
        let (mut first, mut last) = (self.address as isize, self.address as isize);
        for (&dim, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = stride * dim.saturating_sub(1) as isize;
            if reach < 0 { first += reach } else { last += reach }
        }
        let end = last + self.dtype.size_bytes() as isize;
        let start = bytes.as_ptr() as isize;
        self.len_bytes() > 0 && first < start + bytes.len() as isize && start < end
    }

    /// Copies the elements to `target`, in row-major order. `target` may overlap the array.
    ///
    /// # Panics
    /// If `target` has another length than [`len_bytes`](Self::len_bytes).
    pub(crate) fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len_bytes(), "a target of another size");
        if self.overlaps(target) {
            let mut own = vec![0; target.len()];
            self.copy_to(&mut own);
            return target.copy_from_slice(&own);
        }
        // SAFETY: the array's elements are where its shape and strides say, and `_keep` owns them.
        unsafe { gather(self.address as *const u8, &self.shape, &self.strides, self.dtype.size_bytes(), target) }
    }

    /// Copies the elements to a member of the same dtype and shape, detached from Python. The copy is counted.
    pub(crate) fn fill_member(&self, py: Python<'_>, reservation: &mut Reservation, member: &str) -> PyResult<()> {
        self.record_transfer(reservation);
        py.detach(|| match self.contiguous() {
            Some(bytes) => reservation.write_member(member, bytes, CopyReason::Put),
            None => {
                let target = reservation.member_bytes_mut(member)?.ok_or_else(unwritable)?;
                self.copy_to(target);
                reservation.record_copy(CopyReason::Put, self.len_bytes());
                Ok(())
            }
        })
        .or_raise(py)
    }

    /// Copies the elements into a new reservation of the same dtype and shape, whose memory no array shows, detached from Python. The
    /// copy is counted.
    pub(crate) fn fill(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        self.copy_into(py, reservation, false)
    }

    /// Copies the elements to memory that the host cannot address, detached from Python. The copy is counted.
    pub(super) fn fill_device(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        py.detach(|| match self.contiguous() {
            Some(bytes) => reservation.write(bytes, CopyReason::DeviceTransfer),
            None => {
                let mut bytes = vec![0; self.len_bytes()];
                self.copy_to(&mut bytes);
                reservation.write(&bytes, CopyReason::DeviceTransfer)
            }
        })
        .or_raise(py)
    }

    /// As [`fill`](Self::fill), for memory that this array may show.
    pub(crate) fn fill_again(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        let overlaps = reservation.bytes().is_some_and(|target| self.overlaps(target));
        self.copy_into(py, reservation, overlaps)
    }

    fn copy_into(&self, py: Python<'_>, reservation: &mut Reservation, overlaps: bool) -> PyResult<()> {
        self.record_transfer(reservation);
        py.detach(|| match self.contiguous() {
            Some(bytes) if !overlaps => reservation.write(bytes, CopyReason::Put),
            _ => {
                let target = reservation.bytes_mut().ok_or_else(unwritable)?;
                self.copy_to(target);
                reservation.record_copy(CopyReason::Put, self.len_bytes());
                Ok(())
            }
        })
        .or_raise(py)
    }

    fn record_transfer(&self, reservation: &Reservation) {
        if self.from_device {
            reservation.record_copy(CopyReason::DeviceTransfer, self.len_bytes());
        }
    }
}

/// An array without its gradient, and the same with the numbers that its memory has: a capsule does not carry torch's bits for negative
/// and conjugate numbers.
pub(super) fn resolved<'py>(array: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = array.py();
    // A shared torch tensor has no gradient.
    let wanted =
        array.getattr_opt(intern!(py, "requires_grad"))?.is_some_and(|wanted| wanted.is_truthy().unwrap_or(false));
    let shared = if wanted { array.call_method0("detach")? } else { array.clone() };
    let array = match shared.getattr_opt(intern!(py, "resolve_neg"))? {
        Some(resolve) => resolve.call0()?.call_method0(intern!(py, "resolve_conj"))?,
        None => shared.clone(),
    };
    Ok((shared, array))
}

/// The element type, if it is a float of 8 bits of torch.
pub(super) fn small_float(dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let text = dtype.str()?;
    let name = text.to_cow()?;
    Ok([DType::F8E4M3FN, DType::F8E5M2].into_iter().find(|known| name.strip_prefix("torch.") == Some(known.name())))
}

fn unwritable() -> Error {
    Error::unsupported("the host cannot write this memory")
}

/// Whether the elements of an array that is not empty are side by side.
pub(super) fn is_row_major(shape: &[usize], strides: &[isize], item: usize) -> bool {
    let mut expected = item as isize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim as isize;
            fits
        })
}

/// Whether an array with a dtype and a shape fits the tensor `name`, which has those of `wanted`.
///
/// # Errors
/// `Invalid` with the name as the field.
pub(super) fn check_fits(found: (DType, &[usize]), name: &str, wanted: (DType, &[usize])) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    let message = format!("an array {:?} of {} does not fit {:?} of {}", found.1, found.0, wanted.1, wanted.0);
    Err(Error::invalid(message).in_field(name))
}
