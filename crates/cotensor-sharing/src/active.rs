//! A list of all live values of a type in this process.

use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The registered values that are still alive.
pub(crate) struct ActiveList<T>(Mutex<Values<T>>);

struct Values<T> {
    values: BTreeMap<u64, Weak<T>>,
    last_number: u64,
}

impl<T> ActiveList<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Values { values: BTreeMap::new(), last_number: 0 }))
    }

    /// The live values, in the order of their creation.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        // Upgraded before use: dropping the last handle of a value locks the list again.
        self.lock().values.values().filter_map(Weak::upgrade).collect()
    }

    /// Adds a value until the registration is dropped.
    pub(crate) fn add(&'static self, value: &Weak<T>) -> Registration<T> {
        let mut active = self.lock();
        active.last_number += 1;
        let number = active.last_number;
        active.values.insert(number, Weak::clone(value));
        Registration { list: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, Values<T>> {
        lock(&self.0)
    }
}

/// A value's place in the list. Dropping it removes the value.
pub(crate) struct Registration<T: 'static> {
    list: &'static ActiveList<T>,
    number: u64,
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        self.list.lock().values.remove(&self.number);
    }
}
