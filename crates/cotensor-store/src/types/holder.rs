//! The holders of leases.

use std::fmt;
use std::sync::Arc;

/// Who holds a lease: a model, a user, a session. Compared by identity within one store.
#[derive(Clone)]
pub struct Holder {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
}

impl Holder {
    /// A holder as the store itself numbers and names it. Only [`TensorStore::holder`] has use for this.
    pub fn new(id: u32, name: Arc<str>) -> Self {
        Self { id, name }
    }

    /// Its number within the store.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The name given to [`TensorStore::holder`].
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.name)
    }
}
