//! A daemon and its supervisor as separate processes, which can be killed, and their resource usage.

use cotensor_client::ClientStore;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_daemon::{Config, Role, Service};
use cotensor_memory::process;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time-out of every wait, far above the expected time.
pub(crate) const DAEMON_TIMEOUT: Duration = Duration::from_secs(120);

/// Monotonic time in nanoseconds, comparable between processes.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until `done` and returns the elapsed time.
///
/// # Errors
/// `TimedOut` with the description `what`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<Duration> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > DAEMON_TIMEOUT {
            return Err(Error::new(ErrorKind::TimedOut, format!("timed out waiting until {what}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(start.elapsed())
}

pub(crate) fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(doing, &error)
}

pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// A command that starts this program in another role.
pub(crate) fn this_program(role: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().map_err(io("finding this program"))?);
    command.arg(role);
    Ok(command)
}

/// A daemon started for a run.
pub(crate) struct Machine {
    /// The first supervisor.
    started: Child,
    supervisor: Cell<u32>,
    /// The server, if it started the supervisor. Otherwise the supervisor started it.
    parent: Cell<Option<u32>>,
    pub(crate) socket: PathBuf,
    _folder: tempfile::TempDir,
}

/// Times at which a server was killed and was dead.
pub(crate) struct Death {
    pub(crate) killed_ns: u64,
    pub(crate) dead_ns: u64,
}

impl Machine {
    /// Starts a daemon with a budget of `max_memory` bytes.
    pub(crate) fn start(max_memory: u64) -> Result<Self> {
        Self::start_by(this_program("daemon")?, max_memory)
    }

    /// Starts a daemon with this hard limit of open descriptors.
    pub(crate) fn start_limited(descriptors: u64) -> Result<Self> {
        let mut command = Command::new("sh");
        let program = std::env::current_exe().map_err(io("finding this program"))?;
        command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"")]).arg(program).arg("daemon");
        Self::start_by(command, u64::MAX)
    }

    fn start_by(mut command: Command, max_memory: u64) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(io("creating a folder"))?;
        let socket = folder.path().join("cotensor.sock");
        // Ends when this process ends, because its standard input is closed.
        command.args([OsString::from(&socket), max_memory.to_string().into()]).stdin(Stdio::piped());
        let started = command.spawn().map_err(io("starting the daemon"))?;
        let supervisor = Cell::new(started.id());
        let this = Self { started, supervisor, parent: Cell::new(None), socket, _folder: folder };
        until("the daemon answers", || ClientStore::connect(Some(&this.socket), "first").is_ok())?;
        Ok(this)
    }

    /// Process id of the server.
    pub(crate) fn server(&self) -> Result<u32> {
        self.parent.get().map_or_else(|| first_child("the server runs", self.supervisor.get()), Ok)
    }

    /// Kills the server and waits until it is dead.
    pub(crate) fn kill_server(&self) -> Result<Death> {
        let server = self.server()?;
        let killed_ns = now_ns();
        kill(server);
        until("the server is dead", || process::parent(server).is_none())?;
        self.parent.set(None);
        Ok(Death { killed_ns, dead_ns: now_ns() })
    }

    /// Kills the supervisor and waits until the next one, which the server starts, has the state.
    pub(crate) fn kill_supervisor(&self) -> Result<()> {
        let server = self.server()?;
        // The next supervisor makes this file once it has the state.
        let file = cotensor_client::path_beside(&self.socket, ".successor");
        let made = || std::fs::metadata(&file).ok().map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        let before = made();
        kill(self.supervisor.get());
        until("the next supervisor has the state", || made().is_some_and(|now| before != Some(now)))?;
        self.supervisor.set(first_child("the server has a supervisor", server)?);
        self.parent.set(Some(server));
        Ok(())
    }

    /// Current usage of both processes.
    pub(crate) fn usage(&self) -> Result<Usage> {
        Ok(Usage { server: Process::of(self.server()?)?, supervisor: Process::of(self.supervisor.get())? })
    }

    pub(crate) fn processes(&self) -> Result<[u32; 2]> {
        Ok([self.server()?, self.supervisor.get()])
    }
}

/// The first child process of a process, as soon as it has one.
fn first_child(what: &str, pid: u32) -> Result<u32> {
    let mut found = None;
    until(what, || {
        found = process::children(pid).first().copied();
        found.is_some()
    })?;
    found.ok_or_else(|| Error::not_found(what.to_owned()))
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The first supervisor, if it lives, shuts down when its standard input is closed. A later one has another input.
        drop(self.started.stdin.take());
        let supervisor = self.supervisor.get();
        if supervisor != self.started.id() {
            signal(supervisor, Signal::TERM);
            drop(until("the daemon stops", || process::parent(supervisor).is_none()));
        }
        let stopped = until("the daemon stops", || !matches!(self.started.try_wait(), Ok(None)));
        if stopped.is_err() {
            let _ = self.started.kill();
            let _ = self.started.wait();
        }
    }
}

/// Resource usage of a daemon.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    pub(crate) server: Process,
    pub(crate) supervisor: Process,
}

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Process {
    /// Resident private memory, without files and shared memory.
    pub(crate) private_bytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) mappings: usize,
}

impl Process {
    /// # Errors
    /// `NotFound` when the process does not exist, `Io`.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            private_bytes: process::anonymous_rss_bytes(pid)?,
            descriptors: process::fd_count(pid)?,
            mappings: process::mapping_count(pid)?,
        })
    }
}

/// Runs the daemon in this process.
pub(crate) fn run(role: Role, socket: PathBuf, max_memory_bytes: u64) -> Result<()> {
    if role == Role::Foreground {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = kill_process(rustix::process::getpid(), Signal::TERM);
        });
    }
    let config = Config { socket, max_memory_bytes, ..Config::default() };
    cotensor_daemon::run(role, Service { config, http: None }, |_| {})
}
