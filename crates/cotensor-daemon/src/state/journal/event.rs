//! What a server reports to its supervisor.

use crate::state::spill::SpillFile;
use cotensor_client::protocol::{Id, SegmentInfo, Spec};
use cotensor_store::backend::VersionState;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A published tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: Id,
    pub(crate) spec: Spec,
    pub(crate) segment: u64,
    /// The offset in the segment, in bytes. The elements are row-major.
    pub(crate) offset: usize,
    /// The key of the computation that it is a result of.
    pub(crate) key: Option<String>,
    /// The number of versions that its name had.
    pub(crate) versions: u64,
    /// Whether a lookup of its name finds this version.
    pub(crate) current: bool,
    /// Whether its name was removed while it was the current version.
    #[serde(default)]
    pub(crate) removed: bool,
    /// The file of its segment, if it is spilled.
    pub(crate) spilled: Option<SpillFile>,
    /// The time of publishing on the machine's monotonic clock, in nanoseconds.
    #[serde(default)]
    pub(crate) created_ns: Option<u64>,
    /// The time at which the last lease of a tensor that is kept for a time ended, on that clock.
    #[serde(default)]
    pub(crate) left_ns: Option<u64>,
}

impl Entry {
    /// The state of this version.
    pub(crate) fn state(&self) -> VersionState {
        match self {
            Self { current: false, removed: true, .. } => VersionState::Removed,
            Self { current: false, .. } => VersionState::Superseded,
            Self { spilled: Some(_), .. } => VersionState::Spilled,
            _ => VersionState::Published,
        }
    }

    /// The time of publishing on the machine's monotonic clock.
    pub(crate) fn created(&self) -> Option<Duration> {
        self.created_ns.map(Duration::from_nanos)
    }

    /// The time at which its last lease ended.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.left_ns.map(Duration::from_nanos)
    }
}

/// The client of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionClient {
    /// Its process; 0 in another PID namespace.
    pub(crate) pid: i32,
    /// The session that this one resumed. The client knows that number if the answer to its hello was lost.
    pub(crate) was: Option<u64>,
    /// Whether the client keeps the session's lock.
    #[serde(default)]
    pub(crate) locked: bool,
}

/// One change of the daemon's state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A tensor was published. The first tensor in a segment brings the segment's descriptor.
    Published { entry: Box<Entry>, segment: Option<SegmentInfo> },
    /// A name was removed. Its current version may still be leased.
    Unlisted(Id),
    /// A version's segment was written to a file.
    Spilled { id: Id, file: SpillFile },
    /// The last lease of a version that is kept for a time ended, at this time on the machine's monotonic clock.
    Left { id: Id, at_ns: u64 },
    /// A version was freed.
    Freed(Id),
    /// A computation has results.
    Finished { key: String, results: Vec<Id> },
    /// A session computes this key.
    Claimed(String),
    /// The session that claimed this key has given it up.
    Abandoned(String),
    /// A client stored a note.
    NotePut { key: String, note: String },
    /// The store has given ids up to this number to names.
    NameIds(u64),
    /// A session began on the Unix socket.
    SessionStarted { session: u64, client: SessionClient },
    /// A session has lost its connection, and keeps leases of these tensors only.
    SessionLeft { session: u64, leases: Vec<Id> },
    /// A session ended, or did not resume in time.
    SessionEnded(u64),
}
