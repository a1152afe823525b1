//! The daemon at a socket.

use super::{Finding, State};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{Empty, Hello, HelloParams, PROTOCOL, Ping};
use cotensor_core::{ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// The longest path of a Unix socket, in bytes (`sun_path`, which ends with a zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
const PINGS: usize = 100;

pub(super) fn look(socket: &Path) -> Vec<Finding> {
    let mut findings = vec![path(socket)];
    let found = std::fs::symlink_metadata(socket);
    findings.push(match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::new("daemon", State::Note, "none runs", "`cotensor serve` starts one")
        }
        Err(error) => Finding::new("daemon", State::Broken, error.to_string(), "the socket cannot be looked at"),
        Ok(found) if !found.file_type().is_socket() => {
            let why = "something else lies where the socket belongs; a daemon will not remove it";
            Finding::new("daemon", State::Broken, "no socket", why)
        }
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            let why = "the socket is another user's: choose another place with --socket";
            Finding::new("daemon", State::Broken, format!("belongs to user {}", found.uid()), why)
        }
        Ok(_) => match ask(socket) {
            Ok(value) => Finding::ok("daemon", value),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                let why = "a daemon that was killed left its socket; the next `cotensor serve` replaces it";
                Finding::new("daemon", State::Note, "none runs", why)
            }
            Err(error) => Finding::new("daemon", State::Broken, error.to_string(), "it does not answer as it should"),
        },
    });
    findings
}

fn path(socket: &Path) -> Finding {
    let value = socket.display().to_string();
    match socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        true => {
            let why = format!("a Unix socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes");
            Finding::new("socket", State::Broken, value, why)
        }
        false => Finding::ok("socket", value),
    }
}

/// Connects, and times an answer.
fn ask(socket: &Path) -> Result<String> {
    let store = ClientStore::connect(Some(socket), "cotensor doctor")?;
    let params = HelloParams { protocol: PROTOCOL, client: String::new(), resume: None };
    let hello = store.ask::<Hello>(&params)?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = Instant::now();
        store.ask::<Ping>(&Empty {})?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[PINGS / 2].as_micros();
    Ok(format!("version {}, protocol {}, answers in {median} µs", hello.version, hello.protocol))
}
