//! The configuration of HTTP.

use cotensor_client::PORT;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of HTTP. Each field has a default.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// The address to listen on; see [`default_port`](cotensor_client::default_port).
    pub listen: SocketAddr,
    /// The file with the token, readable only by its owner: every user with the token is served. Without a file the
    /// daemon creates a token beside the socket, and on loopback serves only processes of this user and root with
    /// it.
    pub token_file: Option<PathBuf>,
    /// Host names by which clients may address it, besides `localhost` and plain addresses.
    pub hosts: Vec<String>,
    /// The time after which a session without calls ends.
    pub session_ttl: Duration,
    /// The most sessions at a time.
    pub sessions_max: usize,
    /// The most connections of this user at a time, and of clients with the token; each has one request at a time.
    pub connections_max: usize,
    /// The most connections of all others at a time. Each ends with the answer to its first request.
    pub untrusted_connections_max: usize,
    /// The most bytes of a request's line and headers.
    pub header_bytes_max: usize,
    /// The most bytes of one JSON-RPC message.
    pub call_bytes_max: usize,
    /// The most bytes of all JSON-RPC messages together that wait or run.
    pub call_total_bytes_max: usize,
    /// The most bytes of one request below `/v1`.
    pub v1_bytes_max: usize,
    /// The most bytes of all requests below `/v1` together that wait or run.
    pub v1_total_bytes_max: usize,
    /// The most bytes of one tensor that is uploaded.
    pub tensor_bytes_max: u64,
    /// The time limit of a call, including waits for other computations.
    pub request_time_max: Duration,
    /// How long the daemon waits for a client: for the headers, for the first bytes, and for the client to receive an
    /// answer. Each 64 KiB of transfer adds one second.
    pub message_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, PORT).into(),
            token_file: None,
            hosts: Vec::new(),
            session_ttl: Duration::from_secs(300),
            sessions_max: 1024,
            connections_max: 256,
            untrusted_connections_max: 16,
            header_bytes_max: 32 << 10,
            call_bytes_max: 4 << 20,
            call_total_bytes_max: 256 << 20,
            v1_bytes_max: 16 << 20,
            v1_total_bytes_max: 128 << 20,
            tensor_bytes_max: 16 << 30,
            request_time_max: Duration::from_secs(660),
            message_timeout: Duration::from_secs(10),
        }
    }
}
