//! `stop`: ends the daemon.

use super::connection::running;
use super::daemon_processes::{Process, end, find, listening, numbers, wait};
use crate::args::{DaemonOptions, StopArgs};
use crate::output::{count, print, print_json, printable, report};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::store::{Stats, StoreReports};
use cotensor_client::default_socket;
use cotensor_client::protocol::{Empty, Ping, Stop};
use serde::Serialize;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The time for a daemon to end on request. It removes spilled files at its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for a daemon to answer a ping, and for a connection to it.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// The JSON object of `stop`.
#[derive(Serialize)]
struct Stopped {
    /// Whether a daemon was running.
    stopped: bool,
    /// The number of tensors that ended with it; 0 for a daemon that was not asked, because it has another version or does not
    /// answer.
    tensors: usize,
    freed_bytes: u64,
}

pub(crate) fn stop(args: &StopArgs) -> Result<()> {
    let DaemonOptions { socket, json } = &args.daemon;
    let socket = socket.clone().unwrap_or_else(default_socket);
    if is_unresponsive(&socket) {
        let refused =
            Error::new(ErrorKind::TimedOut, "the daemon does not answer, and its processes are not found here");
        return stop_by_signal(&socket, *json, find(&socket), refused.in_file(&socket), "a daemon that did not answer");
    }
    let running = match running(&socket, "cotensor stop") {
        // A daemon of another version, which refuses this client.
        Err(error) if error.kind() == ErrorKind::Unsupported && error.field() == Some("protocol") => {
            return stop_by_signal(&socket, *json, listening(&socket), error, "a daemon of another version");
        }
        running => running?,
    };
    let Some(store) = running else {
        if *json {
            return print_json(&Stopped { stopped: false, tensors: 0, freed_bytes: 0 });
        }
        report(&format!("no daemon is running at {}", socket.display()));
        return Ok(());
    };
    let Stats { total_tensors: tensors, memory_usage_bytes: freed_bytes, .. } = store.stats();
    let processes = find(&socket);
    match store.request::<Stop>(&Empty {}) {
        // It may end before it answers.
        Err(error) if error.kind() != ErrorKind::Io => return Err(error),
        _ => {}
    }
    store.disconnect();
    // The memory is free when the processes have ended.
    let left = wait(processes, STOP_TIMEOUT);
    if !left.is_empty() {
        report(&format!("ending {} of the daemon by signals", numbers(&left)));
        end(&socket, left)?;
    }
    if *json {
        return print_json(&Stopped { stopped: true, tensors, freed_bytes });
    }
    print(&format!("stopped; freed {} ({})\n", count(tensors, "tensor"), size(freed_bytes)))
}

/// Whether a listening daemon does not answer a ping.
fn is_unresponsive(socket: &Path) -> bool {
    let (pinged, answer) = channel();
    let socket = socket.to_path_buf();
    let ping = move || {
        let Ok(connection) = cotensor_client::connect(&socket, Box::new(|_, _, _| {})) else { return };
        let answered = connection.call::<Ping>(&Empty {}, Vec::new(), Some(PING_TIMEOUT));
        let _ = pinged.send(answered.is_err_and(|error| error.kind() == ErrorKind::TimedOut));
    };
    // The system makes a connection wait while the daemon's queue of them is full.
    if std::thread::Builder::new().name("ping".to_owned()).stack_size(128 << 10).spawn(ping).is_err() {
        return false;
    }
    answer.recv_timeout(PING_TIMEOUT * 2).unwrap_or_else(|error| error == RecvTimeoutError::Timeout)
}

/// Ends a daemon that this program cannot ask. Its tensors are not counted.
///
/// # Errors
/// `refused` when the daemon's processes have no numbers here, as in another container, or are a program that has a daemon within
/// it.
fn stop_by_signal(socket: &Path, json: bool, processes: Vec<Process>, refused: Error, what: &str) -> Result<()> {
    if processes.is_empty() {
        return Err(refused);
    }
    let ended = numbers(&processes);
    report(&printable(&format!("{}: ending {ended}, {what}", socket.display())));
    end(socket, processes)?;
    if json {
        return print_json(&Stopped { stopped: true, tensors: 0, freed_bytes: 0 });
    }
    print(&format!("stopped {ended}, {what}\n"))
}
