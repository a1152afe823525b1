//! Names, and changes of names.

use super::TensorId;
use cotensor_core::{Error, Result};

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

/// A watch of every version: the store queues each change of the names, and leases each new version until the reader has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EveryVersion {
    /// The names.
    pub filter: NameFilter,
    /// The most changes that are queued, at least 2 and at most [`VERSIONS_MAX`](Self::VERSIONS_MAX). The oldest are dropped and counted.
    pub versions_max: usize,
    /// The most bytes of queued versions that are leased. The oldest versions are dropped for newer ones. A version of more bytes is queued
    /// without a lease: it can be freed before the reader has read it.
    pub bytes_max: u64,
    /// Whether the newest version of each existing name is queued first.
    pub existing: bool,
}

impl EveryVersion {
    /// The limit of `versions_max`.
    pub const VERSIONS_MAX: usize = 4096;

    /// A watch with the default limits: 256 versions, 1 GiB.
    pub fn new(filter: NameFilter) -> Self {
        Self { filter, versions_max: 256, bytes_max: 1 << 30, existing: false }
    }

    /// # Errors
    /// `Invalid` for a `versions_max` out of its range.
    pub fn check(&self) -> Result<()> {
        if (2..=Self::VERSIONS_MAX).contains(&self.versions_max) {
            return Ok(());
        }
        let message = format!("{} queued versions: pass 2 to {}", self.versions_max, Self::VERSIONS_MAX);
        Err(Error::invalid(message).in_field("versions_max"))
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

/// Changes of names after a position. A name that changed several times is listed once, with its newest version, unless the caller watches
/// [every version](EveryVersion).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChanges {
    /// The position after these changes.
    pub position: ChangePosition,
    /// In the order of the latest change of each name.
    pub changes: Vec<NameChange>,
    /// Whether earlier changes are forgotten, or the position belongs to another store: list the names then.
    pub incomplete: bool,
    /// The number of changes so far that a queue of every version has dropped.
    pub dropped: u64,
}
