//! The daemon by its HTTP port.

use cotensor_core::{Error, ErrorKind, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// How long a daemon may take to say how it is.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of what it says.
const HEALTH_BYTES_MAX: u64 = 64 << 10;

/// The Unix socket of the daemon that answers HTTP at `address` on this machine, as `/health` names it. A client that
/// knows only the port switches to the socket, on which tensors travel without a copy.
///
/// Another user's program may answer at the port and name any socket. Connecting to it is safe: clients refuse a daemon of
/// another user, and nothing secret is sent here.
///
/// # Errors
/// `Unsupported` for an address off loopback, `NotFound` when nothing listens there, `Refused` when the daemon refuses this
/// client, `Corrupt` for an answer that is no daemon's, else `Io`.
pub fn socket_of(address: SocketAddr) -> Result<PathBuf> {
    let at = |error: Error| error.in_field(address.to_string());
    if !address.ip().is_loopback() {
        return Err(at(Error::unsupported("only a daemon of this machine has a socket for this process")));
    }
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => at(Error::not_found("no daemon answers HTTP here")),
        _ => at(Error::io("asking for the daemon's health", &error)),
    };
    let mut stream = TcpStream::connect_timeout(&address, HEALTH_TIMEOUT).map_err(io)?;
    stream.set_read_timeout(Some(HEALTH_TIMEOUT)).map_err(io)?;
    // In the older version an answer is not cut into chunks.
    let request = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(io)?;
    let mut answer = Vec::new();
    stream.take(HEALTH_BYTES_MAX).read_to_end(&mut answer).map_err(io)?;
    let wrong = || at(Error::corrupt("what answers here is no daemon"));
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
