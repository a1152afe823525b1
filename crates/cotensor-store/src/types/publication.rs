//! Terms of a publication.

use super::{Key, TensorId};

/// The newest version that a name must have when a tensor is published under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any, or none.
    #[default]
    Any,
    /// None: the name is free.
    Absent,
    /// This one.
    Version(TensorId),
}

impl Expected {
    /// Whether a name with the version that `newest` returns may be published.
    pub(crate) fn allows(self, newest: impl FnOnce() -> Option<TensorId>) -> bool {
        match self {
            Expected::Any => true,
            Expected::Absent => newest().is_none(),
            Expected::Version(id) => newest() == Some(id),
        }
    }
}

/// What a publication belongs to, and its condition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publication {
    /// The computation whose result the tensor is.
    pub key: Option<Key>,
    /// The newest version of the name before.
    pub expected: Expected,
}
