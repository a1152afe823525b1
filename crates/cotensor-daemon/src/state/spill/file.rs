//! One spilled segment.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The file of a spilled segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpillFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// The hash of its pieces, in hexadecimal.
    pub(crate) hash: String,
}
