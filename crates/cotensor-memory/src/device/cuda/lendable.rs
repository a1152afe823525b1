//! A mapping whose address other code of this process may use.

use super::context::Context;
use super::mapping::Mapping;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A mapping that stays while work of this process may use its address.
pub(super) struct Lendable {
    mapping: Mapping,
    /// The context of the code that has the address.
    user: OnceLock<Arc<Context>>,
}

impl Lendable {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self { mapping, user: OnceLock::new() }
    }

    /// Gives the address to code whose work runs in `context`.
    pub(super) fn lend(&self, context: Arc<Context>) -> u64 {
        self.user.get_or_init(|| context);
        self.mapping.address()
    }
}

impl Deref for Lendable {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Lendable {
    fn drop(&mut self) {
        if let Some(context) = self.user.get() {
            // Without a context, no work is left that could use the address.
            let _ = context.synchronize();
        }
    }
}
