//! Copies of a tensor's elements into an array of the program.

use super::tensor::Tensor;
use crate::errors::OrRaise;
use crate::import::gather;
use crate::import::source::SourceArray;
use cotensor::Error;
use cotensor_memory::copy_parallel_again;
use cotensor_store::CopyReason;
use pyo3::prelude::*;

#[pymethods]
impl Tensor {
    /// Copies the elements into ``array``, a writable array of numpy or tensor of torch in host memory with the same dtype and shape,
    /// whose elements are side by side. Large copies use several threads. The copy is counted.
    fn copy_to(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = self.held(py)?;
        let lease = held.lease();
        let mut target = SourceArray::of(array, &"array")?;
        target.fits(lease.name(), self.layout.dtype(), self.layout.shape()).or_raise(py)?;
        let bytes = target.writable().map_err(|error| error.in_field("array")).or_raise(py)?;
        let start = self.layout.offset_bytes();
        let Some(source) = lease.segment().bytes() else {
            return self.copy_from_device(py, bytes);
        };
        py.detach(|| {
            if self.layout.is_contiguous() {
                copy_parallel_again(bytes, &source[start..start + bytes.len()])
            } else {
                let item = self.layout.dtype().size_bytes();
                let strides: Vec<isize> = self.layout.strides().iter().map(|stride| (stride * item) as isize).collect();
                // SAFETY: a layout's elements are inside its segment, which the lease keeps.
                unsafe { gather(source[start..].as_ptr(), self.layout.shape(), &strides, item, bytes) }
            }
        });
        if let Some(store) = held.store() {
            store.record_copy(lease.name(), CopyReason::PrivateCopy, self.layout.size_bytes());
        }
        Ok(())
    }
}

impl Tensor {
    /// Copies the elements of a tensor on a device, in row-major order. The copy is counted.
    fn copy_from_device(&self, py: Python<'_>, target: &mut [u8]) -> PyResult<()> {
        if !self.layout.is_contiguous() {
            let copy = self.copied(py)?;
            // SAFETY: `copied` allocates the bytes of the elements, as many as `target` has, and `copy` owns them.
            target.copy_from_slice(unsafe { std::slice::from_raw_parts(copy.address().as_ptr(), target.len()) });
            return Ok(());
        }
        let (held, len) = (self.held(py)?, target.len());
        let lease = held.lease();
        py.detach(|| lease.segment().read_at(self.layout.offset_bytes(), target)).or_raise(py)?;
        if let Some(store) = held.store() {
            store.record_copy(lease.name(), CopyReason::DeviceTransfer, len);
        }
        Ok(())
    }
}

impl SourceArray {
    /// The elements for writing.
    ///
    /// # Errors
    /// `Invalid` for an array that is read-only, or whose elements are not side by side in row-major order.
    fn writable(&mut self) -> Result<&mut [u8], Error> {
        if self.read_only {
            return Err(Error::invalid("the array cannot be written: pass a writable one of numpy or torch"));
        }
        let bytes = self.contiguous().ok_or_else(|| {
            Error::invalid("the elements of the array are not side by side in row-major order: pass a contiguous one")
        })?;
        let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the array is writable by its own description, has `len` bytes there, and this object keeps it. The caller must not use
        // them during the call, as with every function that writes into an array.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}
