//! Checks the daemon at a socket.

use super::finding::{Finding, Severity};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{DaemonStatus, Empty, GetStatus, Hello, HelloParams, ModelEngine, PROTOCOL, Ping};
use cotensor_core::{ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// Maximum length of a Unix socket's path, in bytes (`sun_path` without its final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
const PINGS: usize = 100;

pub(super) fn check(socket: &Path) -> Vec<Finding> {
    let mut findings = vec![path(socket)];
    let found = std::fs::symlink_metadata(socket);
    let daemon = match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::new("daemon", Severity::Note, "not running", "`cotensor serve` starts it")
        }
        Err(error) => Finding::new("daemon", Severity::Broken, error.to_string(), "the socket is not accessible"),
        Ok(found) if !found.file_type().is_socket() => {
            let advice = "another file has the path of the socket, and the daemon does not remove it";
            Finding::new("daemon", Severity::Broken, "not a socket", advice)
        }
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            let advice = "the socket belongs to another user; choose another path by --socket";
            Finding::new("daemon", Severity::Broken, format!("owned by user {}", found.uid()), advice)
        }
        Ok(_) => match ping(socket) {
            Ok((value, status)) => {
                findings.extend(status.and_then(model_process));
                Finding::ok("daemon", value)
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                let advice = "the socket is left from a killed daemon; the next `cotensor serve` replaces it";
                Finding::new("daemon", Severity::Note, "not running", advice)
            }
            Err(error) => {
                Finding::new("daemon", Severity::Broken, error.to_string(), "the daemon does not answer correctly")
            }
        },
    };
    findings.insert(1, daemon);
    findings
}

fn path(socket: &Path) -> Finding {
    let value = socket.display().to_string();
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let advice = format!("the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes");
        Finding::new("socket", Severity::Broken, value, advice)
    } else {
        Finding::ok("socket", value)
    }
}

/// The engine of the model process that runs.
fn model_process(status: DaemonStatus) -> Option<Finding> {
    let ModelEngine { name, version, library, absent } = status.engine?;
    let library = library.map_or_else(|| "part of cotensor".to_owned(), |library| library.display().to_string());
    let pid = status.models.map_or_else(String::new, |pid| format!(", process {pid}"));
    let value = format!("{name} {version} ({library}){pid}");
    Some(if absent.is_empty() {
        Finding::ok("model process", value)
    } else {
        Finding::new(
            "model process",
            Severity::Note,
            value,
            format!("the fast engine cannot be used: {}", absent.join("; ")),
        )
    })
}

/// Connects, and measures the median time of a ping. The status is none of a daemon that does not know this version's.
fn ping(socket: &Path) -> Result<(String, Option<DaemonStatus>)> {
    let store = ClientStore::connect(Some(socket), "cotensor doctor")?;
    let params = HelloParams { protocol: PROTOCOL, client: String::new(), ..Default::default() };
    let hello = store.request::<Hello>(&params)?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = Instant::now();
        store.request::<Ping>(&Empty {})?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[PINGS / 2].as_micros();
    let status = store.request::<GetStatus>(&Empty {}).ok();
    Ok((format!("version {}, protocol {}, ping {median} µs", hello.version, hello.protocol), status))
}
