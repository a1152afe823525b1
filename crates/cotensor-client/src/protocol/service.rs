//! What the daemon says about itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The sessions of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    /// By number.
    pub sessions: Vec<SessionInfo>,
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    /// Its number.
    pub session: u64,
    /// The client's name, as holders show it.
    pub client: String,
    /// How it is connected.
    pub transport: Transport,
    /// Since it began, in seconds.
    pub age_s: f64,
    /// Tensors that it leases, counted once for each holder.
    pub leases: usize,
    /// Bytes of the tensors that it leases.
    pub bytes: u64,
}

/// How a session is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// By the Unix socket: it ends with its connection.
    Unix,
    /// By HTTP: it ends when it has not called for a while.
    Http,
}

/// An [OpenRPC](https://spec.open-rpc.org) document.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// The document's fields.
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}
