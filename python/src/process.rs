//! Values that belong to the process that made them.

use crate::errors::raise;
use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value with threads or a connection behind it. A forked child has a copy of the memory only. Dropping the value
/// there would release the parent's leases over the parent's connection, so a child leaks it.
pub(crate) struct ProcessLocal<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> ProcessLocal<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// The value, without the check.
    pub(crate) fn into_inner(self) -> T {
        let mut own = ManuallyDrop::new(self);
        // SAFETY: taken once: `own` is never dropped.
        unsafe { ManuallyDrop::take(&mut own.value) }
    }

    /// Whether this process made the value.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The value, if this process made it.
    ///
    /// # Errors
    /// `Conflict` in a forked child. The message calls the value `what`.
    pub(crate) fn get(&self, py: Python<'_>, what: &str) -> PyResult<&T> {
        if self.is_ours() {
            return Ok(self);
        }
        let message = format!("this {what} belongs to the parent process: create one in this process");
        Err(raise(py, &Error::new(ErrorKind::Conflict, message)))
    }
}

impl<T> Deref for ProcessLocal<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ProcessLocal<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped only here, and `value` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
