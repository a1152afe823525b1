//! What belongs to the process that made it.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// Something with threads or a connection behind it. A child that was forked has a copy of the memory, and nothing of what
/// is behind: dropping it there would give back what the parent holds, on the parent's own connection. So it is left.
pub(crate) struct Own<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// The thing, which is this process's.
    pub(crate) fn into_inner(self) -> T {
        let mut own = ManuallyDrop::new(self);
        // SAFETY: taken once: `own` is never dropped.
        unsafe { ManuallyDrop::take(&mut own.value) }
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here and nowhere else, and `value` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
