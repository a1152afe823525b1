//! Tensors that models acquire and release by name, and what keeps them.

mod log;
mod manager;
mod pool;
mod shared;
mod view;
mod written;

pub(crate) use manager::TensorSharingManager;
pub(crate) use pool::{PooledModel, ResourcePool};
pub(crate) use shared::SharedTensor;
pub(crate) use view::SharedTensorView;

use crate::errors::raise;
use crate::process::Own;
use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;

/// What this process made; a forked child is told that it is its parent's.
fn ours<'a, T>(py: Python<'_>, what: &str, own: &'a Own<T>) -> PyResult<&'a T> {
    if own.is_ours() {
        return Ok(own);
    }
    let message =
        format!("this {what} belongs to the process that this one was forked from: make one of this process's own");
    Err(raise(py, &Error::new(ErrorKind::Conflict, message)))
}
