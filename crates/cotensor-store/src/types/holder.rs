//! The holders of leases.

use std::fmt;
use std::sync::Arc;

/// The holder of leases: a model, a user, a session. Its id is unique within one store.
#[derive(Clone)]
pub struct Holder {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
}

impl Holder {
    /// A holder with the number and the name of a store; for implementations of
    /// [`TensorStore::holder`](crate::TensorStore::holder).
    pub fn new(id: u32, name: Arc<str>) -> Self {
        Self { id, name }
    }

    /// Its number within the store.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.name)
    }
}
