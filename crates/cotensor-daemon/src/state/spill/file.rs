//! One spilled segment.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The context of the hash.
pub(super) const CONTEXT: &str = "cotensor spill v1";
/// Bytes that are read, hashed and written at a time.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// The file of a spilled segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpillFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// The hash of its pieces, in hexadecimal.
    pub(super) hash: String,
}
