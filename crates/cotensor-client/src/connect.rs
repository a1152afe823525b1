//! Connecting to the daemon of this user.

use crate::daemon_process::daemon_report;
use crate::short_path::connect_unix;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::peer_credentials;
use cotensor_rpc::{Connection, OnNotification};
use std::os::fd::AsFd;
use std::path::Path;

/// Connects to the daemon that listens at `socket`.
///
/// # Errors
/// `Unreachable` when no process listens there, `Refused` when the daemon or the socket's folder belongs to another user, else
/// `Io`.
pub fn connect(socket: &Path, on_notification: OnNotification) -> Result<Connection> {
    let stream = connect_unix(socket).map_err(|error| unconnected(&error).in_file(socket))?;
    let peer =
        peer_credentials(stream.as_fd()).map_err(|error| Error::io("reading the daemon's credentials", &error))?;
    if !peer.is_own_user() {
        return Err(Error::new(ErrorKind::Refused, "the daemon here is another user's").in_file(socket));
    }
    let socket = socket.to_path_buf();
    let describe = move |method: &str| daemon_report(&socket, &format!("to answer {method}"));
    Ok(Connection::over(stream, on_notification).with_reports(Box::new(describe)))
}

fn unconnected(error: &std::io::Error) -> Error {
    use std::io::ErrorKind::{ConnectionRefused, InvalidInput, NotFound, PermissionDenied, TimedOut};
    match error.kind() {
        NotFound | ConnectionRefused => {
            Error::new(ErrorKind::Unreachable, format!("no daemon answers here ({error}); `cotensor serve` starts one"))
        }
        PermissionDenied => {
            let message =
                "the socket or its folder is another user's; --socket and COTENSOR_SOCKET name another socket";
            Error::new(ErrorKind::Refused, message)
        }
        InvalidInput => Error::invalid(error.to_string()),
        TimedOut => Error::new(ErrorKind::TimedOut, error.to_string()),
        _ => Error::new(ErrorKind::Io, format!("no daemon answers here ({error})")),
    }
}
