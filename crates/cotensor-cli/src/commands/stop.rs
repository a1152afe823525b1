//! `stop`: ends the daemon.

use super::connection::running;
use crate::args::{DaemonOptions, StopArgs};
use crate::output::{count, print, print_json, report};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::memory::process::peer_credentials;
use cotensor::store::{Stats, StoreReports};
use cotensor_client::protocol::{DaemonStatus, Empty, GetStatus, Stop};
use cotensor_client::{connect_unix, default_socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time for a daemon to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The JSON object of `stop`.
#[derive(Serialize)]
struct Stopped {
    /// Whether a daemon was running.
    stopped: bool,
    /// The number of tensors that ended with it; 0 for a daemon of another version, which is not asked.
    tensors: usize,
    freed_bytes: u64,
}

pub(crate) fn stop(args: &StopArgs) -> Result<()> {
    let DaemonOptions { socket, json } = &args.daemon;
    let socket = socket.clone().unwrap_or_else(default_socket);
    let running = match running(&socket, "cotensor stop") {
        // A daemon of another version, which refuses this client.
        Err(error) if error.kind() == ErrorKind::Unsupported && error.field() == Some("protocol") => {
            return stop_by_signal(&socket, *json, error);
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
    let processes = processes(&socket, &store.request::<GetStatus>(&Empty {})?);
    match store.request::<Stop>(&Empty {}) {
        // It may end before it answers.
        Err(error) if error.kind() != ErrorKind::Io => return Err(error),
        _ => {}
    }
    store.disconnect();
    wait_for_end(&socket, &processes)?;
    if *json {
        return print_json(&Stopped { stopped: true, tensors, freed_bytes });
    }
    print(&format!("stopped; freed {} ({})\n", count(tensors, "tensor"), size(freed_bytes)))
}

/// Ends a daemon that this program cannot ask. Its tensors are not counted.
///
/// # Errors
/// `refused` when the daemon's process has no number here, as in another container, or is a program that has a daemon within it.
fn stop_by_signal(socket: &Path, json: bool, refused: Error) -> Result<()> {
    let pid = connect_unix(socket).and_then(|stream| peer_credentials(stream.as_fd()));
    let pid = pid.ok().filter(|peer| peer.is_own_user()).and_then(|peer| Pid::from_raw(peer.pid?));
    let pid = pid.filter(|pid| is_daemon(*pid)).ok_or(refused)?;
    let io = |error: rustix::io::Errno| Error::io("ending the daemon", &error.into()).in_file(socket);
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(io)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(io)?;
    wait_for_end(socket, &[process])?;
    if json {
        return print_json(&Stopped { stopped: true, tensors: 0, freed_bytes: 0 });
    }
    print(&format!("stopped process {}, a daemon of another version\n", pid.as_raw_nonzero()))
}

/// Whether a process is `cotensor serve`, by its arguments.
fn is_daemon(pid: Pid) -> bool {
    let arguments = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|argument| argument == b"serve")
}

/// The daemon's processes: supervisor, server and model process. Empty when their numbers mean nothing here, as for a daemon of
/// another container: then neither of the first two listens on the socket by its number.
fn processes(socket: &Path, status: &DaemonStatus) -> Vec<OwnedFd> {
    let listening = connect_unix(socket).and_then(|stream| peer_credentials(stream.as_fd()));
    let listening = listening.ok().and_then(|peer| u32::try_from(peer.pid?).ok());
    if listening.is_none() || ![status.supervisor, Some(status.server)].contains(&listening) {
        return Vec::new();
    }
    let pids = [status.supervisor, Some(status.server), status.models];
    let pids = pids.into_iter().flatten().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

/// Waits until no process listens on the socket, and these processes have ended: their memory is free then.
fn wait_for_end(socket: &Path, processes: &[OwnedFd]) -> Result<()> {
    let until = Instant::now() + STOP_TIMEOUT;
    let late = || Error::new(ErrorKind::TimedOut, "the daemon does not end").in_file(socket);
    while connect_unix(socket).is_ok() {
        if Instant::now() > until {
            return Err(late());
        }
        std::thread::sleep(STOP_CHECK_INTERVAL);
    }
    for process in processes {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(|_| late())?;
        // A process descriptor is readable when its process has ended.
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left));
        if ended.map_err(|error| Error::io("waiting for the daemon's end", &error.into()))? == 0 {
            return Err(late());
        }
    }
    Ok(())
}
