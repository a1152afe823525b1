//! Values that JavaScript names by numbers.

use cotensor_core::{Error, ErrorKind};

/// A table of values under small numbers. The number of a removed value is used again.
pub(crate) struct Handles<T> {
    values: Vec<Option<T>>,
    unused: Vec<u32>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { values: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Handles<T> {
    /// Adds a value and returns its number.
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if let Some(number) = self.unused.pop() {
            self.values[number as usize] = Some(value);
            return number;
        }
        self.values.push(Some(value));
        // WebAssembly's memory is smaller than 2^32 values.
        (self.values.len() - 1) as u32
    }

    /// The value of that number.
    ///
    /// # Errors
    /// `Conflict` when it was removed.
    pub(crate) fn get(&self, number: u32) -> Result<&T, Error> {
        self.values.get(number as usize).and_then(Option::as_ref).ok_or_else(disposed)
    }

    /// The value of that number, for changes.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, number: u32) -> Result<&mut T, Error> {
        self.values.get_mut(number as usize).and_then(Option::as_mut).ok_or_else(disposed)
    }

    /// Removes the value of that number.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn remove(&mut self, number: u32) -> Result<T, Error> {
        let value = self.values.get_mut(number as usize).and_then(Option::take).ok_or_else(disposed)?;
        self.unused.push(number);
        Ok(value)
    }
}

fn disposed() -> Error {
    Error::new(ErrorKind::Conflict, "the tensor was disposed")
}
