//! What a session has open, by the numbers that its client knows.

use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;

/// Reservations, tickets and slabs that one session may have open, each.
pub(crate) const OPEN_MAX: usize = 4096;

/// Things by number.
pub(crate) struct Open<T> {
    next: u64,
    pub(super) things: HashMap<u64, T>,
}

impl<T> Default for Open<T> {
    fn default() -> Self {
        Self { next: 1, things: HashMap::new() }
    }
}

impl<T> Open<T> {
    /// The number of a new thing.
    ///
    /// # Errors
    /// `Conflict` when there are too many.
    pub(crate) fn add(&mut self, thing: T) -> Result<u64> {
        if self.things.len() >= OPEN_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{OPEN_MAX} of these are open in this session")));
        }
        let id = self.next;
        self.next += 1;
        self.things.insert(id, thing);
        Ok(id)
    }

    /// Takes a thing out.
    ///
    /// # Errors
    /// `NotFound` for a number that this session does not have.
    pub(crate) fn take(&mut self, id: u64, field: &str) -> Result<T> {
        let gone = || Error::not_found(format!("this session has no {field} {id}")).in_field(field);
        self.things.remove(&id).ok_or_else(gone)
    }
}
