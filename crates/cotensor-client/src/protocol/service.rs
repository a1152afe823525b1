//! What the daemon says about itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

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

/// Where the daemon answers HTTP.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HttpEndpoint {
    /// Address and port that it listens at. No other program can listen there meanwhile.
    #[schemars(with = "String")]
    pub address: SocketAddr,
    /// The file, mode 0600, of the token that HTTP requests need.
    pub token_file: PathBuf,
}

/// What opens the daemon's page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DashboardFile {
    /// An HTML file, mode 0600, that sends a browser to the page with a code that is good once, and for a minute.
    pub file: PathBuf,
}

/// An [OpenRPC](https://spec.open-rpc.org) document.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// The document's fields.
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}
