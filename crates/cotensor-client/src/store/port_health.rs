//! The daemon that serves HTTP at a port of this machine.

use crate::protocol::{self as p, PROTOCOL};
use crate::store::ClientStore;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait for the answer of the program at the port, and for that of the daemon that it names.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of an answer.
const HEALTH_BYTES_MAX: usize = 64 << 10;

/// Connects to this user's daemon with HTTP at `port` of this machine.
///
/// Any user's program can listen at the port and name any socket. The answer is therefore only a hint: a process of this user
/// must listen at that socket, and this process must say itself that it serves HTTP at the port. Nothing is created or started
/// at a place that the answer names.
///
/// # Errors
/// `NotFound` when no program listens there; `Conflict` when a program does that is not this user's daemon; `Unsupported` for
/// another version of the protocol; `Io`.
pub(crate) fn connect_at_port(port: u16, client: &str, timeout: Duration) -> Result<Arc<ClientStore>> {
    let began = Instant::now();
    let at = |error: Error| error.prefixed(format_args!("127.0.0.1:{port}"));
    let socket = socket_at((Ipv4Addr::LOCALHOST, port).into()).map_err(at)?;
    let stranger = |why: String| {
        let message =
            format!("the program at port {port} is not a daemon of this user: {why}; name another port, or a socket");
        at(Error::new(ErrorKind::Conflict, message))
    };
    // The path in the answer is a stranger's text, so no message shows it.
    let left = timeout.min(HEALTH_TIMEOUT).saturating_sub(began.elapsed());
    let store = ClientStore::connect_within(Some(&socket), client, left).map_err(|error| match error.kind() {
        ErrorKind::Unsupported => error,
        _ => stranger(error.message().to_owned()),
    })?;
    let deadline = Deadline::from(HEALTH_TIMEOUT);
    let answer = store.call_by::<p::HttpAddress>(&p::Empty {}, &deadline);
    let (http, _) = answer.map_err(|error| stranger(error.message().to_owned()))?;
    if http.address.port() != port || !reaches_loopback(http.address.ip()) {
        return Err(stranger(format!("the daemon that it names serves {}", http.address)));
    }
    Ok(store)
}

/// Whether a server with this address answers at 127.0.0.1. One that listens on all addresses of IPv6 does by default.
fn reaches_loopback(address: IpAddr) -> bool {
    address == Ipv4Addr::LOCALHOST || address.is_unspecified()
}

/// The socket that the program at `address` names in its answer to `GET /health`.
///
/// # Errors
/// `NotFound` when no program listens there, `Unsupported` for another version of the protocol, else `Conflict`.
fn socket_at(address: SocketAddr) -> Result<PathBuf> {
    let answer = ask(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Error::not_found("no program listens at this port"),
        _ => {
            let message =
                format!("the program at this port does not answer as a daemon does ({error}); name another port");
            Error::new(ErrorKind::Conflict, message)
        }
    })?;
    let other = || {
        let message = "another program than a Cotensor daemon answers at this port; name another port, or a socket";
        Error::new(ErrorKind::Conflict, message)
    };
    let answer = String::from_utf8(answer).map_err(|_| other())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(other)?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(other());
    }
    let health: serde_json::Value = serde_json::from_str(body).map_err(|_| other())?;
    let (Some("ok"), Some(protocol), Some(socket)) =
        (health["status"].as_str(), health["protocol"].as_u64(), health["socket"].as_str())
    else {
        return Err(other());
    };
    if protocol != u64::from(PROTOCOL) {
        let message = format!(
            "the daemon at this port has version {protocol} of the protocol, and this program version {PROTOCOL}: \
             install the same version of Cotensor for both"
        );
        return Err(Error::unsupported(message));
    }
    let socket = PathBuf::from(socket);
    if socket.is_absolute() { Ok(socket) } else { Err(other()) }
}

/// The whole answer to `GET /health`, within [`HEALTH_TIMEOUT`] and [`HEALTH_BYTES_MAX`].
fn ask(address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let until = Instant::now() + HEALTH_TIMEOUT;
    let left = || {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok::<_, std::io::Error>(left) }
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    // HTTP 1.0 answers are not chunked.
    stream.write_all(format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > HEALTH_BYTES_MAX {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the answer is too long"));
        }
    }
}
