//! Connecting to the daemon of this user.

use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::peer_credentials;
use cotensor_rpc::{Connection, OnNotification};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to the daemon that listens at `socket`.
///
/// # Errors
/// `Unreachable` when no process listens there, `Refused` when the daemon belongs to another user, else `Io`.
pub fn connect(socket: &Path, on_notification: OnNotification) -> Result<Connection> {
    let stream = UnixStream::connect(socket).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => ErrorKind::Unreachable,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("no daemon answers here ({error}); `cotensor serve` starts one")).in_file(socket)
    })?;
    let peer =
        peer_credentials(stream.as_fd()).map_err(|error| Error::io("reading the daemon's credentials", &error))?;
    if !peer.is_own_user() {
        return Err(Error::new(ErrorKind::Refused, "the daemon here is another user's").in_file(socket));
    }
    Ok(Connection::over(stream, on_notification))
}
