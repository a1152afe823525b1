//! Handles of tensors and stores for `pickle`. `cotensor._handles` opens them.

use crate::errors::raise;
use crate::held_lease::HeldLease;
use cotensor::{Error, ErrorKind};
use cotensor_client::ClientStore;
use cotensor_core::Layout;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::any::Any;
use std::ffi::OsString;

/// The result of `__reduce__`: a function and its arguments.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The handle of a daemon's store.
pub(super) fn reduce_store<'py>(py: Python<'py>, store: &ClientStore) -> PyResult<Reduced<'py>> {
    let arguments = (socket_of(store), store.client());
    Ok((opener(py, "open_store")?, arguments.into_pyobject(py)?))
}

/// The handle of a tensor in the daemon's store, or of a view of one.
///
/// # Errors
/// `Conflict` in a forked child, `Unsupported` for a tensor of a local store.
pub(super) fn reduce_tensor<'py>(py: Python<'py>, held: &HeldLease, layout: &Layout) -> PyResult<Reduced<'py>> {
    let lease = held.lease();
    let Some(store) = held.store() else {
        let message = "the parent process leased this tensor: get it again in this process to send it";
        return Err(raise(py, &Error::new(ErrorKind::Conflict, message)));
    };
    let store: &dyn Any = &**store;
    let Some(store) = store.downcast_ref::<ClientStore>().filter(|_| !lease.is_private()) else {
        let message = format!(
            "tensor {:?} is private to this process: put it into the daemon's store (cotensor.connect()) to send it",
            lease.name()
        );
        return Err(raise(py, &Error::unsupported(message)));
    };
    let spec = lease.spec();
    let is_whole = layout.dtype() == spec.dtype && layout.shape() == &spec.shape[..] && layout.is_contiguous();
    let view = (!is_whole).then(|| {
        let offset = layout.offset_bytes() - lease.layout().offset_bytes();
        (offset, layout.dtype().name(), PyTuple::new(py, layout.shape()), PyTuple::new(py, layout.strides()))
    });
    let view = match view {
        Some((offset, dtype, shape, strides)) => Some((offset, dtype, shape?, strides?)),
        None => None,
    };
    let id = (lease.id().name_id, lease.id().version);
    let arguments = (socket_of(store), store.epoch(), lease.name(), id, view);
    Ok((opener(py, "open_tensor")?, arguments.into_pyobject(py)?))
}

/// The absolute path of the daemon's socket.
fn socket_of(store: &ClientStore) -> OsString {
    let socket = std::path::absolute(store.socket());
    socket.unwrap_or_else(|_| store.socket().to_path_buf()).into_os_string()
}

fn opener<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("cotensor._handles")?.getattr(name)
}
