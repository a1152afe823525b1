//! What a server reports to its supervisor.

use cotensor_client::protocol::{Id, SegmentInfo, Spec};
use cotensor_store::backend::VersionState;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The file of a spilled segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpillFile {
    /// Its number in the daemon's folder.
    pub number: u64,
    /// Its absolute path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// The hash of its pieces, in hexadecimal.
    pub hash: String,
}

/// A published tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The id of its name, and its version.
    pub id: Id,
    /// Its description.
    pub spec: Spec,
    /// The number of its segment in the journal.
    pub segment: u64,
    /// The offset in the segment, in bytes. The elements are row-major.
    pub offset: usize,
    /// The key of the computation that it is a result of.
    pub key: Option<String>,
    /// The number of versions that its name had.
    pub versions: u64,
    /// Whether a lookup of its name finds this version.
    pub current: bool,
    /// Whether its name was removed while it was the current version.
    #[serde(default)]
    pub removed: bool,
    /// The file of its segment, if it is spilled.
    pub spilled: Option<SpillFile>,
    /// The time of publishing on the machine's monotonic clock, in nanoseconds.
    #[serde(default)]
    pub created_ns: Option<u64>,
    /// The time at which the last lease of a tensor that is kept for a time ended, on that clock.
    #[serde(default)]
    pub left_ns: Option<u64>,
}

impl Entry {
    /// The state of this version.
    pub fn state(&self) -> VersionState {
        match self {
            Self { current: false, removed: true, .. } => VersionState::Removed,
            Self { current: false, .. } => VersionState::Superseded,
            Self { spilled: Some(_), .. } => VersionState::Spilled,
            _ => VersionState::Published,
        }
    }

    /// The time of publishing on the machine's monotonic clock.
    pub fn created(&self) -> Option<Duration> {
        self.created_ns.map(Duration::from_nanos)
    }

    /// The time at which its last lease ended.
    pub fn left(&self) -> Option<Duration> {
        self.left_ns.map(Duration::from_nanos)
    }
}

/// The client of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionClient {
    /// Its process; 0 in another PID namespace.
    pub pid: i32,
    /// The session that this one resumed. The client knows that number if the answer to its hello was lost.
    pub was: Option<u64>,
    /// Whether the client keeps the session's lock.
    #[serde(default)]
    pub locked: bool,
}

/// One change of the daemon's state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A tensor was published. The first tensor in a segment brings the segment's descriptor.
    Published {
        /// The tensor.
        entry: Box<Entry>,
        /// Its segment, if the journal does not have it yet.
        segment: Option<SegmentInfo>,
    },
    /// A name was removed. Its current version may still be leased.
    Unlisted(Id),
    /// A version's segment was written to a file.
    Spilled {
        /// The version.
        id: Id,
        /// The file of its segment.
        file: SpillFile,
    },
    /// The last lease of a version that is kept for a time ended.
    Left {
        /// The version.
        id: Id,
        /// The time of the end on the machine's monotonic clock, in nanoseconds.
        at_ns: u64,
    },
    /// A version was freed.
    Freed(Id),
    /// A computation has results.
    Finished {
        /// The key in hexadecimal.
        key: String,
        /// The tensors, in the order of the outputs.
        results: Vec<Id>,
    },
    /// A session computes this key.
    Claimed(String),
    /// The session that claimed this key has given it up.
    Abandoned(String),
    /// A client stored a note.
    NotePut {
        /// The key in hexadecimal.
        key: String,
        /// The note in hexadecimal.
        note: String,
    },
    /// The store has given ids up to this number to names.
    NameIds(u64),
    /// A session began on the Unix socket.
    SessionStarted {
        /// The session's number.
        session: u64,
        /// Its client.
        client: SessionClient,
    },
    /// A session has lost its connection, and keeps leases of these tensors only.
    SessionLeft {
        /// The session's number.
        session: u64,
        /// The leased versions, once for each lease.
        leases: Vec<Id>,
    },
    /// A session ended, or did not resume in time.
    SessionEnded(u64),
}
