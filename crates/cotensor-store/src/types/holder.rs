//! The holders of leases.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The holder of leases: a model, a user, a session. Holders are equal if their names are.
#[derive(Clone)]
pub struct Holder(Arc<str>);

impl Holder {
    /// The holder of that name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        // The clones of one holder are compared without reading their names.
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl From<Holder> for Arc<str> {
    fn from(holder: Holder) -> Self {
        holder.0
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.0)
    }
}
