//! Arrays of other libraries: what they say of themselves, and how their bytes come in.

use crate::arrays::numpy_dtype;
use crate::dlpack;
use crate::errors::{OrRaise, raise};
use crate::gather::gather;
use crate::modules::{Numpy, Torch};
use crate::window::{Held, made_of};
use cotensor::{DType, Error};
use cotensor_core::{ContentHash, Layout};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fmt::Display;
use std::sync::Arc;

/// An array of somebody else's, in the host's memory, kept alive.
pub(crate) struct Source {
    address: usize,
    pub(crate) dtype: DType,
    /// In elements.
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
    _keep: Keep,
}

enum Keep {
    Object(#[allow(dead_code, reason = "kept, not used")] Py<PyAny>),
    Taken(#[allow(dead_code, reason = "kept, not used")] dlpack::Taken),
}

// SAFETY: `Taken` has a raw address beside an owner that may go on any thread; the bytes are only read.
unsafe impl Send for Keep {}
// SAFETY: as above.
unsafe impl Sync for Keep {}

impl Source {
    /// Looks at an array: numpy's, or anything that speaks DLPack (torch, JAX, …). Numbers and lists become numpy's first.
    /// Errors name `place`, where the array was given.
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
                return Ok(found);
            }
        }
        let name = array.get_type().fully_qualified_name()?.to_string();
        let message = format!("{name} is no array: it has neither __dlpack__ nor is it numpy's");
        Err(raise(py, &Error::invalid(message).in_field(place.to_string())))
    }

    /// numpy's own arrays say where their memory is; scalars are made arrays, because theirs moves.
    fn of_numpy(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Option<Self>> {
        let py = array.py();
        let Some(numpy) = Numpy::imported(py)? else { return Ok(None) };
        let array = match array.is_instance(numpy.generic.bind(py))? {
            true => numpy.asarray.bind(py).call1((array,))?,
            false => array.clone(),
        };
        if !array.is_instance(numpy.ndarray.bind(py))? {
            return Ok(None);
        }
        if !array.get_type().is(&numpy.ndarray) && array.hasattr("mask")? {
            let message = "a masked array's mask would be lost: share its data and its mask, or filled()";
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        let dtype =
            numpy_dtype(&array.getattr("dtype")?)?.map_err(|error| raise(py, &error.in_field(place.to_string())))?;
        let interface = array.getattr("__array_interface__")?.cast_into::<PyDict>()?;
        let field = |name: &str| interface.get_item(name);
        let missing = || raise(py, &Error::invalid("an array without memory").in_field(place.to_string()));
        let (address, _): (usize, bool) = field("data")?.ok_or_else(missing)?.extract()?;
        let shape: Vec<usize> = field("shape")?.ok_or_else(missing)?.extract()?;
        let strides: Vec<isize> = array.getattr("strides")?.extract()?;
        Ok(Some(Self { address, dtype, shape, strides, _keep: Keep::Object(array.unbind()) }))
    }

    fn of_dlpack(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        let refused = |error: PyErr| refusal(array, place, error);
        // torch's own way through DLPack takes several times longer than what it leads to.
        let torch = Torch::imported(py)?.filter(|torch| torch.is_plain(array));
        let torch = match torch {
            Some(torch) if array.getattr(intern!(py, "is_cpu"))?.is_truthy()? => Some(torch),
            _ => None,
        };
        let (kind, number) =
            if torch.is_some() { (dlpack::CPU, 0) } else { dlpack::device_of(array).map_err(refused)? };
        if !dlpack::is_host(kind) {
            let message = format!(
                "an array on device {number} of DLPack kind {kind}: tensors of devices are not shared yet; \
                 bring it to the host first, or pass from_device=True to have it copied and counted"
            );
            return Err(raise(py, &Error::unsupported(message).in_field(place.to_string())));
        }
        // torch: what is shared has no gradient.
        let wanted =
            array.getattr_opt(intern!(py, "requires_grad"))?.is_some_and(|wanted| wanted.is_truthy().unwrap_or(false));
        let array = if wanted { array.call_method0("detach")? } else { array.clone() };
        // DLPack says nothing of torch's negative bit.
        let array = match array.getattr_opt(intern!(py, "resolve_neg"))? {
            Some(resolve) => resolve.call0()?,
            None => array,
        };
        let taken = match torch {
            Some(torch) => torch.to_dlpack.bind(py).call1((&array,)).and_then(|capsule| dlpack::open(&capsule)),
            None => dlpack::take(&array),
        };
        let taken = taken.map_err(refused)?;
        let (address, dtype) = (taken.address as usize, taken.dtype);
        let (shape, strides) = (taken.shape.clone(), taken.strides.clone());
        Ok(Self { address, dtype, shape, strides, _keep: Keep::Taken(taken) })
    }

    /// Whether it can be written into a tensor of that name, dtype and shape, which have to be its own.
    pub(crate) fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), Error> {
        if self.dtype == dtype && self.shape == shape {
            return Ok(());
        }
        let message = format!("{:?} of {} do not go into {shape:?} of {dtype}", self.shape, self.dtype);
        Err(Error::invalid(message).in_field(name))
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// The elements as bytes, where they lie side by side in order.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        let mut expected = self.dtype.size_bytes() as isize;
        for (&dim, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if dim != 1 && stride != expected && self.len_bytes() > 0 {
                return None;
            }
            expected *= dim as isize;
        }
        if self.len_bytes() == 0 {
            return Some(&[]);
        }
        // SAFETY: the array says that its elements lie there, one after the other, and `_keep` keeps them. Nobody may write
        // them meanwhile, as with every function that is given an array.
        Some(unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len_bytes()) })
    }

    /// The tensor that this is all of, in shared memory already and not written in place since.
    pub(crate) fn tensor(&self) -> Option<Arc<Held>> {
        let held = made_of(self.address)?;
        let lease = held.lease();
        let same = lease.dtype() == self.dtype && lease.shape() == self.shape && lease.layout().is_contiguous();
        (same && self.contiguous().is_some()).then_some(held)
    }

    /// What the value is by content: as [`Lease::identity`](cotensor::Lease::identity) of a tensor of the same bytes.
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

    /// Whether an element lies in these bytes.
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

    /// Copies the elements to `target`, in row-major order; it has as many bytes. They may be its own.
    pub(crate) fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len_bytes(), "a target of another size");
        if self.overlaps(target) {
            let mut own = vec![0; target.len()];
            self.copy_to(&mut own);
            return target.copy_from_slice(&own);
        }
        // SAFETY: the array's elements are where its shape and strides say, and `_keep` keeps them.
        unsafe { gather(self.address as *const u8, &self.shape, &self.strides, self.dtype.size_bytes(), target) }
    }
}

/// Why an array whose library gave an error in answer to DLPack cannot be shared: in words of ours where the reason is a known
/// one, with what to do about it.
fn refusal(array: &Bound<'_, PyAny>, place: &dyn Display, error: PyErr) -> PyErr {
    let py = array.py();
    let name = array.get_type().fully_qualified_name().map_or_else(|_| "array".to_owned(), |name| name.to_string());
    let why = why_not(array).unwrap_or_else(|| error.value(py).to_string());
    let refusal =
        raise(py, &Error::unsupported(format!("this {name} cannot be shared: {why}")).in_field(place.to_string()));
    refusal.set_cause(py, Some(error));
    refusal
}

/// The reasons that a torch tensor may have.
fn why_not(array: &Bound<'_, PyAny>) -> Option<String> {
    let said = |name: &str| array.getattr(name).ok();
    let is = |name: &str| said(name).is_some_and(|value| value.is_truthy().unwrap_or(false));
    if is("is_nested") {
        return Some("a nested tensor has no one shape; to_padded_tensor(0) has".to_owned());
    }
    if is("is_meta") {
        return Some("a meta tensor has no memory".to_owned());
    }
    if is("is_quantized") {
        return Some(
            "a quantized tensor is more than its numbers; share int_repr() and its scales, or dequantize()".into(),
        );
    }
    let layout = said("layout")?.str().ok()?.to_string();
    if layout != "torch.strided" {
        return Some(format!("its layout is {layout}; to_dense() has one that can be shared"));
    }
    let dtype = said("dtype")?.str().ok()?.to_string();
    dtype.contains("complex").then(|| format!("its dtype is {dtype}; torch.view_as_real(x) has one that can be shared"))
}
