//! One spilled segment.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The context of the hash.
pub(super) const CONTEXT: &str = "cotensor spill v1";

/// The file of a spilled segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpillFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// The hash of its pieces, in hexadecimal.
    pub(super) hash: String,
}
