//! Pools of PyTorch whose tensors a store publishes without a copy.

use super::store::Store;
use crate::args;
use crate::errors::{OrRaise, raise};
use crate::export::device::{cuda_memory, not_cuda};
use crate::import::value::Value;
use pyo3::prelude::*;

#[pymethods]
impl Store {
    /// A pool of PyTorch for tensors that :meth:`put` publishes without a copy: ``with store.producing("cuda:0"):``.
    ///
    /// What this thread allocates on the GPU in the block lies in memory that processes can share. ``put``, also after the block, publishes a
    /// contiguous tensor of it where it is, once the work of PyTorch's current stream has ended, and keeps the tensor until no process leases
    /// it. ``sealed=True`` copies. A slice that does not start at a multiple of 256 bytes is copied, and so is a tensor that is published
    /// already.
    ///
    /// **PyTorch can still write the memory of a published tensor**, and all readers would see that: the program must not write it in place, nor
    /// the block of the allocator in which it lies. Readers, also ``put``'s result, have read-only addresses. The budget counts whole blocks of
    /// PyTorch's allocator (2 MiB, 20 MiB, or the size of a larger tensor), which readers map as a whole.
    ///
    /// Several blocks with one object share its pool, whose unused memory PyTorch keeps until the object is dropped. A lost connection to the
    /// daemon keeps published tensors until the process ends.
    fn producing<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::device)] device: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.client_store(py, "memory of GPUs")?;
        let device = Value::target(py, Some(&device), false)?.unwrap_or_default();
        let memory = py.detach(|| cuda_memory(device)).or_raise(py)?;
        let memory = memory.ok_or_else(|| raise(py, &not_cuda(device)))?;
        let arguments = (memory.ordinal(), device.to_string());
        py.import("cotensor.torch.producing")?.call_method1("Producing", arguments)
    }
}
