//! One spilled segment.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
