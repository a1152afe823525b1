//! A mapping whose address other code of this process may use.

use super::context::Context;
use super::mapping::Mapping;
use cotensor_core::Result;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A mapping that stays while work of this process may use its address.
pub(super) struct Lendable {
    mapping: ManuallyDrop<Mapping>,
    /// The context of the code that has the address.
    user: OnceLock<Arc<Context>>,
}

impl Lendable {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self { mapping: ManuallyDrop::new(mapping), user: OnceLock::new() }
    }

    /// Gives the address to code whose work runs in `context`.
    pub(super) fn lend(&self, context: Arc<Context>) -> u64 {
        self.user.get_or_init(|| context);
        self.mapping.address()
    }

    /// Whether other code has the address.
    pub(super) fn is_lent(&self) -> bool {
        self.user.get().is_some()
    }

    /// Waits for the work of other code that may use the address. Without such code, it returns at once: functions that copy wait for
    /// their own copies.
    ///
    /// # Errors
    /// `Conflict` while a stream of the context is captured into a graph; `Io`.
    pub(super) fn wait_for_users(&self) -> Result<()> {
        self.user.get().map_or(Ok(()), |context| context.synchronize())
    }
}

impl Deref for Lendable {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Lendable {
    /// Unmaps, once no work can use the address. Where that cannot be found out, such as during a capture, the mapping stays until the
    /// process ends: unmapping under a running kernel would end all work of the process.
    fn drop(&mut self) {
        if self.user.get().is_none_or(|context| context.becomes_idle()) {
            // SAFETY: the value is not used again.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
