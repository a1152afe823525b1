//! `status` and `stop`: the daemon itself.

use crate::args::{DaemonOptions, StatusArgs, StopArgs};
use crate::output::{print, print_json, report};
use crate::table::duration;
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::store::{Stats, StoreReports};
use cotensor_client::protocol::{DaemonStatus, Empty, GetStatus, Stop};
use cotensor_client::{ClientStore, default_socket, log_path};
use serde::Serialize;
use std::fmt::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time for a daemon to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The JSON object of `status`.
#[derive(Serialize)]
struct Running {
    running: bool,
    socket: PathBuf,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    daemon: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    #[serde(flatten)]
    status: DaemonStatus,
    /// The log, if the daemon was started in the background.
    log: Option<PathBuf>,
    tensors: usize,
    memory_usage_bytes: u64,
    max_memory_bytes: Option<u64>,
    /// Bytes of the copies that sharing avoids now.
    saved_bytes: u64,
}

/// The JSON object of `stop`.
#[derive(Serialize)]
struct Stopped {
    /// Whether a daemon was running.
    stopped: bool,
    /// The number of tensors that ended with it.
    tensors: usize,
    freed_bytes: u64,
}

pub(crate) fn status(args: &StatusArgs) -> Result<()> {
    show(&args.daemon)
}

/// Prints the status of the daemon.
///
/// # Errors
/// `Unreachable` when none runs.
pub(super) fn show(options: &DaemonOptions) -> Result<()> {
    let socket = options.socket.clone().unwrap_or_else(default_socket);
    let Some(store) = running(&socket, "cotensor status")? else {
        if options.json {
            print_json(&Running { running: false, socket: socket.clone(), daemon: None })?;
        }
        return Err(Error::new(ErrorKind::Unreachable, "no daemon is running here").in_file(&socket));
    };
    let details = details(&store)?;
    if options.json {
        return print_json(&Running { running: true, socket, daemon: Some(details) });
    }
    print(&text(&socket, &details))
}

fn details(store: &ClientStore) -> Result<Details> {
    let mut status = store.request::<GetStatus>(&Empty {})?;
    // Without this command.
    status.clients = status.clients.saturating_sub(1);
    let stats = store.stats();
    let Stats { total_tensors, spilled_now, memory_usage_bytes, max_memory_bytes, saved_bytes, .. } = stats;
    Ok(Details {
        status,
        log: Some(log_path(store.socket())).filter(|log| log.exists()),
        tensors: total_tensors + spilled_now,
        memory_usage_bytes,
        max_memory_bytes,
        saved_bytes,
    })
}

fn text(socket: &Path, details: &Details) -> String {
    let Details { status, log, tensors, memory_usage_bytes, max_memory_bytes, saved_bytes } = details;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<8} {value}");
    };
    let processes = match status.supervisor {
        Some(supervisor) => format!("processes {supervisor} (supervisor) and {} (server)", status.server),
        None => format!("inside process {}", status.server),
    };
    line("daemon", format!("version {}, up {}, {processes}", status.version, duration(status.uptime_s)));
    line("socket", socket.display().to_string());
    if let Some(address) = &status.http {
        line("HTTP", format!("http://{address}"));
    }
    if let Some(pid) = status.models {
        line("models", format!("process {pid}"));
    }
    let budget = max_memory_bytes.map_or_else(String::new, |max| format!(" of {}", size(max)));
    line("memory", format!("{}{budget} in {tensors} tensors", size(*memory_usage_bytes)));
    line("saved", format!("{} by sharing", size(*saved_bytes)));
    line("clients", status.clients.to_string());
    if let Some(idle) = status.idle_exit_s {
        line("end", format!("after {} without clients and tensors", duration(idle)));
    }
    if let Some(log) = log {
        line("log", log.display().to_string());
    }
    text
}

pub(crate) fn stop(args: &StopArgs) -> Result<()> {
    let DaemonOptions { socket, json } = &args.daemon;
    let socket = socket.clone().unwrap_or_else(default_socket);
    let Some(store) = running(&socket, "cotensor stop")? else {
        if *json {
            return print_json(&Stopped { stopped: false, tensors: 0, freed_bytes: 0 });
        }
        report(&format!("no daemon is running at {}", socket.display()));
        return Ok(());
    };
    let Stats { total_tensors: tensors, memory_usage_bytes: freed_bytes, .. } = store.stats();
    match store.request::<Stop>(&Empty {}) {
        // It may end before it answers.
        Err(error) if error.kind() != ErrorKind::Io => return Err(error),
        _ => {}
    }
    store.disconnect();
    let until = Instant::now() + STOP_TIMEOUT;
    while UnixStream::connect(&socket).is_ok() {
        if Instant::now() > until {
            return Err(Error::new(ErrorKind::TimedOut, "the daemon does not end").in_file(socket));
        }
        std::thread::sleep(STOP_CHECK_INTERVAL);
    }
    if *json {
        return print_json(&Stopped { stopped: true, tensors, freed_bytes });
    }
    print(&format!("stopped; {tensors} tensors ({}) were freed\n", size(freed_bytes)))
}

/// A connection to the daemon if one runs.
/// The daemon at `socket` as a client called `client`; none if none runs.
pub(super) fn running(socket: &Path, client: &str) -> Result<Option<Arc<ClientStore>>> {
    match ClientStore::connect(Some(socket), client) {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind() == ErrorKind::Unreachable => Ok(None),
        Err(error) => Err(error),
    }
}
