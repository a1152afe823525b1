//! Messages about the daemon: sessions, the HTTP address, the OpenRPC document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The sessions of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    /// The sessions, by number.
    pub sessions: Vec<SessionInfo>,
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    /// Its number.
    pub session: u64,
    /// The client's name, for display.
    pub client: String,
    /// The transport.
    pub transport: Transport,
    /// The time since it was opened, in seconds.
    pub age_s: f64,
    /// The number of tensors that it leases; a tensor counts once for each holder.
    pub leases: usize,
    /// The bytes of the tensors that it leases.
    pub bytes: u64,
}

/// The transport of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// The Unix socket. The session ends with its connection.
    Unix,
    /// HTTP. The session ends after a time without calls.
    Http,
}

/// The processes of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DaemonStatus {
    /// The version of the program.
    pub version: String,
    /// The process that serves.
    pub server: u32,
    /// The process that supervises the server, and that a user or the system started. None for a daemon inside another program.
    pub supervisor: Option<u32>,
    /// The time since this server started, in seconds.
    pub uptime_s: f64,
    /// The number of open sessions without those of the model process.
    pub clients: usize,
    /// The daemon ends after this time without clients and tensors, in seconds.
    pub idle_exit_s: Option<f64>,
    /// The address and port of its HTTP server.
    pub http: Option<String>,
    /// The process that runs models, if it runs.
    pub models: Option<u32>,
    /// The engine that models get in that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<ModelEngine>,
}

/// The engine of the model process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelEngine {
    /// Its name, such as `ort`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file of its library. None for an engine that is a part of the program.
    pub library: Option<PathBuf>,
    /// Why a better engine cannot be used: its name and the reason.
    #[serde(default)]
    pub absent: Vec<String>,
}

/// A library of onnxruntime.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LibraryParams {
    /// Its absolute path, of at most 4095 bytes.
    pub library: PathBuf,
}

/// What became of a library.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OfferedLibrary {
    /// The engine of the model process. None while none runs: the next one tries the library.
    pub engine: Option<ModelEngine>,
}

/// The HTTP that a client wants.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct HttpListenParams {
    /// The port on loopback. None for 2537 plus `RANK`, or a free port where another program has that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// The daemon's HTTP endpoint.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HttpEndpoint {
    /// The address and port at which the daemon listens.
    #[schemars(with = "String")]
    pub address: SocketAddr,
    /// The file, mode 0600, of the token that HTTP requests need.
    pub token_file: PathBuf,
    /// The file, mode 0600, of the token that is good for the paths below `/v1` only. None if the daemon serves no models.
    pub v1_token_file: Option<PathBuf>,
}

/// The process that runs models.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelEndpoint {
    /// Its Unix socket, on which it serves HTTP/1.1: the paths below `/v1`.
    pub socket: PathBuf,
    /// Its process.
    pub pid: u32,
}

/// A file that opens the daemon's page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DashboardFile {
    /// An HTML file, mode 0600, that redirects a browser to the page. Its code is valid for one use within a minute.
    pub file: PathBuf,
}

/// An [OpenRPC](https://spec.open-rpc.org) document.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// The fields of the document.
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}
