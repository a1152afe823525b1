//! The processes of a daemon, found and ended without its answer.

use cotensor::core::waiting::WaitClock;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::memory::process::{children, peer_credentials, wait_report};
use cotensor_client::{DaemonLock, connect_unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time for the processes to end after each signal.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait of one call.
const WAIT_SLICE: Duration = Duration::from_secs(3600);
/// The signals, in their order. A process that a signal starts, such as another supervisor, gets the next one.
const SIGNALS: [Signal; 3] = [Signal::TERM, Signal::KILL, Signal::KILL];

/// A process. Its descriptor names it also after its number was given to another process.
pub(super) struct Process {
    pid: Pid,
    fd: OwnedFd,
}

impl Process {
    pub(super) fn open(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        Some(Self { pid, fd: pidfd_open(pid, PidfdFlags::empty()).ok()? })
    }

    fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it ends within `timeout`: its descriptor is readable then.
    fn ends_within(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)).is_ok_and(|count| count > 0)
    }

    /// Waits until it has ended.
    pub(super) fn wait(&self) {
        while !self.ends_within(WAIT_SLICE) {}
    }
}

/// The processes of the daemon at `socket`: those that run `serve` and have the socket's lock open, and their children. Processes of
/// other users, and of containers whose numbers mean nothing here, are not found.
pub(super) fn find(socket: &Path) -> Vec<Process> {
    let Some(lock) = DaemonLock::of(socket) else { return Vec::new() };
    let holders = lock.processes().filter_map(|pid| {
        // The descriptor comes first: if the process runs after the checks, they were about it.
        let process = Process::open(pid)?;
        let is_found = runs_serve(pid) && lock.is_open_in(pid) && !process.ends_within(Duration::ZERO);
        is_found.then_some(process)
    });
    with_children(holders.collect())
}

/// The process that listens at `socket` and its children, if it is this user's and runs `serve`: a daemon of another version may
/// have another lock.
pub(super) fn listening(socket: &Path) -> Vec<Process> {
    let peer = connect_unix(socket).and_then(|stream| peer_credentials(stream.as_fd()));
    let pid = peer.ok().filter(|peer| peer.is_own_user()).and_then(|peer| u32::try_from(peer.pid?).ok());
    let process = pid.and_then(|pid| Process::open(pid).filter(|_| runs_serve(pid)));
    with_children(process.into_iter().collect())
}

fn with_children(mut found: Vec<Process>) -> Vec<Process> {
    let mut at = 0;
    while let Some(process) = found.get(at) {
        let known: Vec<u32> = found.iter().map(Process::number).collect();
        let new = children(process.number()).into_iter().filter(|child| !known.contains(child));
        let new: Vec<Process> = new.filter_map(Process::open).collect();
        found.extend(new);
        at += 1;
    }
    found
}

/// Whether a process is `cotensor serve`, by its arguments.
fn runs_serve(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|argument| argument == b"serve")
}

/// The numbers of processes, for messages.
pub(super) fn numbers(processes: &[Process]) -> String {
    let numbers: Vec<String> = processes.iter().map(|process| process.number().to_string()).collect();
    let noun = if numbers.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", numbers.join(", "))
}

/// Waits for the end of the processes, for `timeout` at most. Returns those that have not ended.
pub(super) fn wait(processes: Vec<Process>, timeout: Duration) -> Vec<Process> {
    let until = Instant::now() + timeout;
    let mut left = processes;
    let mut clock = WaitClock::default();
    loop {
        left.retain(|process| !process.ends_within(Duration::ZERO));
        let Some(first) = left.first() else { return left };
        let now = Instant::now();
        if now >= until {
            return left;
        }
        let pids: Vec<u32> = left.iter().map(Process::number).collect();
        clock.check(|| wait_report(&pids, "the daemon", " to end", true));
        let _ = first.ends_within(clock.left().min(until - now));
    }
}

/// Ends the daemon's processes by signals, also stopped ones. Does nothing without processes.
///
/// # Errors
/// `TimedOut` for processes that the kernel does not end.
pub(super) fn end(socket: &Path, processes: Vec<Process>) -> Result<()> {
    let mut left = processes;
    for signal in SIGNALS {
        if left.is_empty() {
            return Ok(());
        }
        for process in &left {
            let _ = pidfd_send_signal(&process.fd, signal);
        }
        // A stopped process gets SIGTERM when it continues.
        for process in &left {
            let _ = pidfd_send_signal(&process.fd, Signal::CONT);
        }
        left = wait(left, END_TIMEOUT);
        let known: Vec<u32> = left.iter().map(Process::number).collect();
        left.extend(find(socket).into_iter().filter(|process| !known.contains(&process.number())));
    }
    if left.is_empty() {
        return Ok(());
    }
    let message = format!("{} of the daemon did not end after SIGKILL", numbers(&left));
    Err(Error::new(ErrorKind::TimedOut, message).in_file(socket))
}
