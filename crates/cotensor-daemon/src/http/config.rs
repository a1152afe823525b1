//! The configuration of HTTP.

use cotensor_core::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The port of rank 0.
pub const PORT: u16 = 2537;

/// The configuration of HTTP. Each field has a default.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// The address to listen on; see [`default_port`].
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
    /// The most bytes of a request's line and headers; up to twice as many pass when they come in one piece.
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

/// The port of this process's daemon: 2537 plus `RANK`, one daemon for each rank. If `GPUS_PER_NODE` is set, one daemon
/// serves all ranks of the machine on port 2537.
///
/// # Errors
/// `Invalid` naming the variable.
pub fn default_port() -> Result<u16> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    port(variable("RANK").as_deref(), variable("GPUS_PER_NODE").as_deref())
}

fn port(rank: Option<&str>, gpus_per_node: Option<&str>) -> Result<u16> {
    let number = |name: &str, value: Option<&str>| -> Result<Option<u16>> {
        let wrong = |value: &str| Error::invalid(format!("{value:?} is not a port offset")).in_field(name);
        value.map(|value| value.trim().parse().map_err(|_| wrong(value))).transpose()
    };
    let rank = number("RANK", rank)?.unwrap_or_default();
    match number("GPUS_PER_NODE", gpus_per_node)? {
        Some(0) => Err(Error::invalid("a machine has at least one device").in_field("GPUS_PER_NODE")),
        Some(_) => Ok(PORT),
        None => {
            let beyond = || Error::invalid(format!("{PORT} plus {rank} is not a port")).in_field("RANK");
            PORT.checked_add(rank).ok_or_else(beyond)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_port_unless_one_daemon_serves_all_devices() {
        assert_eq!(port(None, None).unwrap(), 2537);
        assert_eq!(port(Some("3"), None).unwrap(), 2540);
        assert_eq!(port(Some("3"), Some("4")).unwrap(), 2537);
        for (rank, gpus, field) in [
            (Some("-1"), None, "RANK"),
            (Some("x"), None, "RANK"),
            (Some("65000"), None, "RANK"),
            (Some("1"), Some("0"), "GPUS_PER_NODE"),
            (None, Some("many"), "GPUS_PER_NODE"),
        ] {
            assert_eq!(port(rank, gpus).unwrap_err().field(), Some(field));
        }
    }
}
