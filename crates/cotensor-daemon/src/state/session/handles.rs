//! Handles: the numbers by which a client names its reservations, packs and tickets.

use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;

/// The most handles of one kind in a session.
pub(crate) const HANDLES_MAX: usize = 4096;

/// Values by their handles. A handle is never reused in its session.
pub(crate) struct HandleTable<T> {
    next: u64,
    values: HashMap<u64, T>,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { next: 1, values: HashMap::new() }
    }
}

impl<T> HandleTable<T> {
    /// Adds a value and returns its handle.
    ///
    /// # Errors
    /// `Conflict` when the session has [`HANDLES_MAX`] of them.
    pub(crate) fn add(&mut self, value: T) -> Result<u64> {
        if self.values.len() >= HANDLES_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{HANDLES_MAX} of these are open in this session")));
        }
        let handle = self.next;
        self.next += 1;
        self.values.insert(handle, value);
        Ok(handle)
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.values.get(&handle)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.values.values()
    }

    /// Removes a value and returns it.
    ///
    /// # Errors
    /// `NotFound` in `field` for a handle that this session does not have.
    pub(crate) fn take(&mut self, handle: u64, field: &str) -> Result<T> {
        let missing = || Error::not_found(format!("this session has no {field} {handle}")).in_field(field);
        self.values.remove(&handle).ok_or_else(missing)
    }
}
