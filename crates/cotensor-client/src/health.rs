//! Finds the daemon's Unix socket through its HTTP port.

use cotensor_core::{Error, ErrorKind, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// The longest wait for the daemon's answer.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const HEALTH_BYTES_MAX: u64 = 64 << 10;

/// Reads from `/health` the Unix socket of the daemon that serves HTTP at `address` on this machine. A client that has
/// only the port switches to the socket, which transfers tensors without a copy.
///
/// Another user's program may listen at the port and return any socket. Connecting to that socket is safe: clients
/// refuse a daemon of another user, and this request contains no secret.
///
/// # Errors
/// `Unsupported` for an address that is not loopback, `NotFound` when no program listens there, `Refused` when the
/// daemon refuses this client. `Corrupt` when the answer is not a daemon's, else `Io`.
pub fn socket_of(address: SocketAddr) -> Result<PathBuf> {
    let at = |error: Error| error.in_field(address.to_string());
    if !address.ip().is_loopback() {
        return Err(at(Error::unsupported(
            "only a daemon on this machine has a Unix socket for this process; use a loopback address",
        )));
    }
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            at(Error::not_found("no daemon serves HTTP here; `cotensor serve --listen` starts one"))
        }
        _ => at(Error::io("cannot read the daemon's health", &error)),
    };
    let mut stream = TcpStream::connect_timeout(&address, HEALTH_TIMEOUT).map_err(io)?;
    stream.set_read_timeout(Some(HEALTH_TIMEOUT)).map_err(io)?;
    // HTTP 1.0 answers are not chunked.
    let request = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(io)?;
    let mut answer = Vec::new();
    stream.take(HEALTH_BYTES_MAX).read_to_end(&mut answer).map_err(io)?;
    let wrong = || at(Error::corrupt("another program than a Cotensor daemon answers here"));
    let answer = String::from_utf8(answer).map_err(|_| wrong())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(wrong)?;
    match head.split(' ').nth(1) {
        Some("200") => {}
        Some("401" | "403") => return Err(at(Error::new(ErrorKind::Refused, "the daemon refuses this client"))),
        _ => return Err(wrong()),
    }
    let health: serde_json::Value = serde_json::from_str(body).map_err(|_| wrong())?;
    if health["status"] != "ok" {
        return Err(wrong());
    }
    health["socket"].as_str().map(PathBuf::from).ok_or_else(wrong)
}
