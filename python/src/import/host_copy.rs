//! Arrays on a device, copied to the host.

use crate::dlpack::abi::{device_of, is_host};
use pyo3::prelude::*;

/// A host copy of an array on a device; `None` for an array on the host.
pub(super) fn host_copy<'py>(array: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !array.hasattr("__dlpack_device__")? || is_host(device_of(array)?.0) {
        return Ok(None);
    }
    if let Some(cpu) = array.getattr_opt("cpu")? {
        return cpu.call0().map(Some);
    }
    array.py().import("numpy")?.call_method1("asarray", (array,)).map(Some)
}
