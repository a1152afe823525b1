//! What `pickle` makes of tensors and stores: handles, which `cotensor._handles` opens.

use crate::errors::raise;
use crate::window::Held;
use cotensor::{Error, ErrorKind};
use cotensor_client::ClientStore;
use cotensor_core::Layout;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::any::Any;
use std::ffi::OsString;

/// What `__reduce__` returns: a function, and its arguments.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The handle of a daemon's store.
pub(crate) fn of_store<'py>(py: Python<'py>, store: &ClientStore) -> PyResult<Reduced<'py>> {
    let arguments = (socket_of(store), store.client());
    Ok((opening(py, "open_store")?, arguments.into_pyobject(py)?))
}

/// The handle of a tensor that the daemon keeps, or of a window on one.
pub(crate) fn of_tensor<'py>(py: Python<'py>, held: &Held, layout: &Layout) -> PyResult<Reduced<'py>> {
    let lease = held.lease();
    let Some(store) = held.store() else {
        let message = "this tensor was leased by the process that this one was forked from: get it again to send it";
        return Err(raise(py, &Error::new(ErrorKind::Conflict, message)));
    };
    let store: &dyn Any = &**store;
    let Some(store) = store.downcast_ref::<ClientStore>().filter(|_| !lease.is_private()) else {
        let message = format!(
            "tensor {:?} is this process's own: put it into the daemon's store, cotensor.connect(), to send it",
            lease.name()
        );
        return Err(raise(py, &Error::unsupported(message)));
    };
    let spec = lease.spec();
    let is_whole = layout.dtype() == spec.dtype && layout.shape() == &spec.shape[..] && layout.is_contiguous();
    let window = (!is_whole).then(|| {
        let offset = layout.offset_bytes() - lease.layout().offset_bytes();
        (offset, layout.dtype().name(), PyTuple::new(py, layout.shape()), PyTuple::new(py, layout.strides()))
    });
    let window = match window {
        Some((offset, dtype, shape, strides)) => Some((offset, dtype, shape?, strides?)),
        None => None,
    };
    let id = (lease.id().slot, lease.id().version);
    let arguments = (socket_of(store), store.epoch(), lease.name(), id, window);
    Ok((opening(py, "open_tensor")?, arguments.into_pyobject(py)?))
}

/// The path of the daemon's socket, for processes in other folders too.
fn socket_of(store: &ClientStore) -> OsString {
    let socket = std::path::absolute(store.socket());
    socket.unwrap_or_else(|_| store.socket().to_path_buf()).into_os_string()
}

fn opening<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("cotensor._handles")?.getattr(name)
}
