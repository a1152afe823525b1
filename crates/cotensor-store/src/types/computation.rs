//! The key of a computation.

use cotensor_core::ContentHash;

/// The key of a computation: the hash of stage fingerprint, engine and its version, precision, and inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub ContentHash);
