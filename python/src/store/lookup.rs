//! The published tensor of an array or an address.

use super::tensor::Tensor;
use crate::errors::OrRaise;
use crate::export::private_pages::PrivatePages;
use crate::export::tensor_mapping;
use crate::held_lease::HeldLease;
use crate::import::source::SourceArray;
use cotensor::DType;
use cotensor_core::Layout;
use cotensor_memory::shared_bytes;
use pyo3::prelude::*;
use std::sync::Arc;

/// The published tensor that an array shows as a whole; ``None`` for other arrays, and after a write in place.
#[pyfunction]
pub(crate) fn as_tensor(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    Ok(lease_of(py, array)?.map(Tensor::whole))
}

/// The lease behind [`as_tensor`], without a `Tensor` object.
pub(crate) fn lease_of(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Option<Arc<HeldLease>>> {
    if let Ok(tensor) = array.cast::<Tensor>() {
        let held = tensor.get().held(py)?;
        return Ok(tensor.get().is_whole(&held).then_some(held));
    }
    Ok(SourceArray::of(array, &"array")?.tensor())
}

/// The published tensor whose mapping contains ``nbytes`` bytes at ``address``, as bytes in a mapping of its own, and
/// their offset in bytes. ``None`` for other memory, and after a write to one of these pages.
#[pyfunction]
pub(crate) fn published_at(py: Python<'_>, address: usize, nbytes: usize) -> PyResult<Option<(Tensor, usize)>> {
    let Some((held, offset)) = py.detach(|| tensor_mapping::published_at(address, nbytes)) else { return Ok(None) };
    let bytes = held.lease().layout().byte_range();
    let layout = Layout::strided(DType::U8, &[bytes.len()], &[1], bytes.start).or_raise(py)?;
    Ok(Some((Tensor::part(PrivatePages::new(held), layout), offset)))
}

/// The memory that all processes share behind ``nbytes`` bytes at ``address``: the tensor, the address and the size of a
/// read-only shared mapping of its memory, and the offset of these bytes in it. The mapping ends with the tensor. ``None`` for other
/// memory, for small tensors, which have no pages of their own, and after a write to one of these pages.
#[pyfunction]
pub(crate) fn shared_pages(
    py: Python<'_>,
    address: usize,
    nbytes: usize,
) -> PyResult<Option<(Tensor, usize, usize, usize)>> {
    let Some((tensor, offset)) = published_at(py, address, nbytes)? else { return Ok(None) };
    let held = tensor.held(py)?;
    let lease = held.lease();
    // Without such a mapping, the bytes are copied as those of other memory are.
    let Ok((shared, start)) = shared_bytes(lease.segment()) else { return Ok(None) };
    let offset = start + lease.layout().byte_range().start + offset;
    Ok(Some((tensor, shared.as_ptr().addr(), shared.len(), offset)))
}
