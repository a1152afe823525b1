//! The orphaned model process of a former server, which was killed: it is ended before another one starts.

use super::process::V1_FLAG;
use cotensor_client::ShortPath;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::peer_credentials;
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// The time for it to end after SIGTERM, and again after SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Ends the model process that listens at `path`, if there is one, and removes the socket's file.
///
/// # Errors
/// `Refused` for another process, which gets no signal; `Conflict` for a process that does not end and for a file that is not a socket;
/// `Io`.
pub(super) async fn end_orphan(path: &Path) -> Result<()> {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut sent = false;
        let until = Instant::now() + END_TIMEOUT;
        while let Some(connection) = connect(path).await? {
            if !sent {
                tracing::info!("ending the orphaned model process of a former server");
                // The connection is open, so its process number is not reused.
                let _ = kill_process(listener_of(&connection, path)?, signal);
                sent = true;
            }
            if Instant::now() > until {
                break;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        if !sent {
            return remove(path);
        }
    }
    match connect(path).await? {
        None => remove(path),
        Some(_) => Err(Error::new(ErrorKind::Conflict, "an orphaned model process does not end").in_file(path)),
    }
}

/// A connection to the process that listens at `path`; none if no process does.
async fn connect(path: &Path) -> Result<Option<UnixStream>> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let connected = match ShortPath::of(path) {
        Ok(short) => UnixStream::connect(short).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
        Err(error) => Err(Error::io("searching an orphaned model process", &error).in_file(path)),
    }
}

fn listener_of(connection: &UnixStream, path: &Path) -> Result<Pid> {
    let peer = peer_credentials(connection.as_fd());
    let peer = peer.map_err(|error| Error::io("searching an orphaned model process", &error).in_file(path))?;
    let pid = peer.pid.filter(|_| peer.is_own_user()).and_then(Pid::from_raw);
    pid.filter(|pid| serves_models_at(*pid, path)).ok_or_else(|| {
        let process = peer.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        let message = format!("{process}, which is not a model process of this daemon, listens here: end it");
        Error::new(ErrorKind::Refused, message).in_file(path)
    })
}

/// Whether a process was started to serve models at `path`, by its arguments.
fn serves_models_at(pid: Pid, path: &Path) -> bool {
    let arguments = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let arguments: Vec<_> = arguments.split(|byte| *byte == 0).collect();
    arguments.windows(2).any(|pair| pair == [V1_FLAG.as_bytes(), path.as_os_str().as_bytes()])
}

/// Removes the socket of a process that ended.
fn remove(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let message = "a file that is not a socket is here: remove it";
            Err(Error::new(ErrorKind::Conflict, message).in_file(path))
        }
        Ok(_) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("removing the socket of an orphaned model process", &error).in_file(path))
            }
            _ => Ok(()),
        },
        Err(_) => Ok(()),
    }
}
