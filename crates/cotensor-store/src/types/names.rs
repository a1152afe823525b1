//! Names, and changes of names.

use super::TensorId;

/// A published name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedVersion {
    /// The name.
    pub name: String,
    /// Its newest version, in memory or spilled.
    pub id: TensorId,
}

/// The names that a caller watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameFilter {
    /// This name.
    Name(String),
    /// All names that start with this text.
    Prefix(String),
}

impl NameFilter {
    /// Whether the filter selects `name`.
    pub fn selects(&self, name: &str) -> bool {
        match self {
            NameFilter::Name(own) => own == name,
            NameFilter::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            NameFilter::Name(text) | NameFilter::Prefix(text) => text,
        }
    }
}

/// A moment in the changes of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangePosition {
    /// The identity of the log of changes. Every store has another one, also after a restart.
    pub log: u64,
    /// The number of the latest change.
    pub number: u64,
}

/// A change of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// The name.
    pub name: String,
    /// Its newest version; `None` when the name was removed or its tensor was freed.
    pub id: Option<TensorId>,
}

/// Changes of names after a position. A name that changed several times is listed once, with its newest version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChanges {
    /// The position after these changes.
    pub position: ChangePosition,
    /// In the order of the latest change of each name.
    pub changes: Vec<NameChange>,
    /// Whether earlier changes are forgotten, or the position belongs to another store: list the names then.
    pub incomplete: bool,
}
