//! The list of all shared tensors of this process that have a handle or a view.

use crate::lifecycle::TensorCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static ACTIVE: Mutex<ActiveTensors> = Mutex::new(ActiveTensors { tensors: BTreeMap::new(), last_number: 0 });

struct ActiveTensors {
    tensors: BTreeMap<u64, Weak<TensorCell>>,
    last_number: u64,
}

fn lock() -> MutexGuard<'static, ActiveTensors> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The live tensors, in the order of their creation.
pub(crate) fn tensors() -> Vec<Arc<TensorCell>> {
    // Upgraded before use: dropping the last handle of a tensor locks the list again.
    lock().tensors.values().filter_map(Weak::upgrade).collect()
}

/// A tensor's registration in the list. Dropping it removes the tensor.
pub(crate) struct Registration(u64);

impl Registration {
    pub(crate) fn new(tensor: &Weak<TensorCell>) -> Self {
        let mut active = lock();
        active.last_number += 1;
        let number = active.last_number;
        active.tensors.insert(number, Weak::clone(tensor));
        Self(number)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock().tensors.remove(&self.0);
    }
}
