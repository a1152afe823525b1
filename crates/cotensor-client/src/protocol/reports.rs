//! Reports of the store, and what clients report to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

message! {
    /// A report of the store.
    Report {
        /// Fields as in the store's documentation.
        #[serde(flatten)]
        fields: serde_json::Map<String, serde_json::Value>,
    }

    /// A copy.
    CopyParams {
        /// The tensor's name, if the copy is of one.
        #[serde(default)]
        tensor: String,
        /// The reason, such as `put`.
        reason: String,
        /// The length in bytes.
        bytes: u64,
    }

    /// Copies.
    CopiesParams {
        /// At most 64.
        copies: Vec<CopyParams>,
    }

    /// Memory that a client keeps ready and that the daemon has not seen, for display.
    ReadyParams {
        /// All of it, in bytes.
        bytes: u64,
    }
}
