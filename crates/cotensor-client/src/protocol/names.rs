//! Names and their changes in messages.

use super::tensor::Id;
use cotensor_store::{ChangePosition, NameFilter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most names of one answer.
pub const NAMES_MAX: usize = 4096;
/// The bytes of names after which an answer ends.
pub const NAMES_BYTES_MAX: usize = 1 << 20;

message! {
    /// Whether a name exists.
    FoundName {
        /// Its newest version, in memory or spilled; none when there is no such name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Id>,
    }

    /// Names to list.
    ListNamesParams {
        /// The start of each name.
        #[serde(default)]
        prefix: String,
        /// Only names after this one, in order of their bytes.
        #[serde(default)]
        after: String,
        /// The most to list; at most 4096 are listed.
        #[serde(default = "names_max")]
        limit: usize,
    }

    /// Listed names.
    NameList {
        /// The names in order, with their newest versions.
        names: Vec<ListedName>,
        /// The number of names beyond these.
        left_off: usize,
    }

    /// A name and its newest version.
    ListedName {
        /// The name.
        name: String,
        /// The version.
        id: Id,
    }

    /// Changes to wait for.
    ChangesParams {
        /// The names.
        filter: Filter,
        /// The position in the changes that the caller has; without it, the answer is the current position.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Position>,
        /// The longest wait in milliseconds; at most 30 seconds. Without changes in this time, the answer has none.
        #[serde(default)]
        timeout_ms: u64,
    }

    /// Every version to wait for.
    VersionsParams {
        /// The names.
        filter: Filter,
        /// The most changes that the daemon queues for the caller: 2 to 4096. It drops the oldest, and counts them.
        versions_max: usize,
        /// The most bytes of the queued versions that the daemon leases to the session.
        bytes_max: u64,
        /// Whether the newest version of each existing name is the first change.
        #[serde(default)]
        existing: bool,
        /// The position up to which the caller has read the changes of its queue. Without it, a queue is opened, and the answer is its position.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Position>,
        /// The longest wait in milliseconds; at most 30 seconds. Without changes in this time, the answer has none.
        #[serde(default)]
        timeout_ms: u64,
    }

    /// A queue of every version.
    EndVersionsParams {
        /// The number of the queue: the field `log` of its positions.
        log: u64,
    }

    /// A position in the changes of a store.
    #[derive(Copy, PartialEq, Eq)]
    Position {
        /// The identity of the log of changes: another one for every daemon, also after a restart, and for every queue.
        log: u64,
        /// The number of the latest change.
        number: u64,
    }

    /// Changes.
    Changes {
        /// The position after them.
        position: Position,
        /// The latest change of each name; of a queue, every change in order.
        changes: Vec<ChangedName>,
        /// Whether earlier changes are forgotten. The caller lists the names then, and opens another queue instead of one that has ended.
        #[serde(default)]
        incomplete: bool,
        /// The number of changes so far that the queue has dropped.
        #[serde(default, skip_serializing_if = "is_zero")]
        dropped: u64,
    }

    /// A change of a name.
    ChangedName {
        /// The name.
        name: String,
        /// Its newest version; none when it was removed or freed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Id>,
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn names_max() -> usize {
    NAMES_MAX
}

/// Names, by text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// This name.
    Name(String),
    /// All names that start with this text.
    Prefix(String),
}

impl From<&NameFilter> for Filter {
    fn from(filter: &NameFilter) -> Self {
        match filter {
            NameFilter::Name(name) => Filter::Name(name.clone()),
            NameFilter::Prefix(prefix) => Filter::Prefix(prefix.clone()),
        }
    }
}

impl From<Filter> for NameFilter {
    fn from(filter: Filter) -> Self {
        match filter {
            Filter::Name(name) => NameFilter::Name(name),
            Filter::Prefix(prefix) => NameFilter::Prefix(prefix),
        }
    }
}

impl From<ChangePosition> for Position {
    fn from(ChangePosition { log, number }: ChangePosition) -> Self {
        Self { log, number }
    }
}

impl From<Position> for ChangePosition {
    fn from(Position { log, number }: Position) -> Self {
        Self { log, number }
    }
}
