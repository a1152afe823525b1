//! A daemon in separate processes, which tests can kill.

use super::until;
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_daemon::testing::{WAIT_TIMEOUT, is_stopped};
use cotensor_store::{CopyReason, Lease, Retention, StoreReports, TensorStore};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct Processes {
    supervisor: Child,
    pub(crate) socket: PathBuf,
    /// The program and its first arguments.
    command: Vec<OsString>,
    arguments: Vec<OsString>,
    pub(crate) folder: tempfile::TempDir,
}

impl Processes {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| Vec::new())
    }

    /// Starts a daemon with the arguments that `more` returns for the folder of the socket.
    pub(crate) fn start_with(more: impl FnOnce(&Path) -> Vec<OsString>) -> Self {
        Self::start_by(|_| vec![PROGRAM.into()], more)
    }

    /// Starts a daemon by the command that `command` returns for the folder of the socket.
    pub(crate) fn start_by(
        command: impl FnOnce(&Path) -> Vec<OsString>,
        more: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let arguments: Vec<OsString> = std::iter::once(socket.clone().into()).chain(more(folder.path())).collect();
        let command = command(folder.path());
        let supervisor = spawn(&command, &arguments);
        let this = Self { supervisor, socket, command, arguments, folder };
        until("the daemon answers", || ClientStore::connect(Some(&this.socket), "first").is_ok());
        this
    }

    /// Kills supervisor and server, and starts a daemon without their state.
    pub(crate) fn start_anew(mut self) -> Self {
        let server = self.server();
        signal(self.supervisor(), Signal::STOP);
        signal(server, Signal::KILL);
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        // A living process has the lock.
        until("both processes have ended", || with_argument(&self.socket).is_empty());
        self.supervisor = spawn(&self.command, &self.arguments);
        self
    }

    /// Kills the supervisor, and waits until the server has started another one. Returns its process.
    pub(crate) fn kill_foreground(&mut self) -> u32 {
        let server = self.server();
        signal(self.supervisor(), Signal::KILL);
        let _ = self.supervisor.wait();
        let mut next = None;
        until("there is another supervisor", || {
            next = children(server).first().copied();
            next.is_some()
        });
        until("the supervisor listens for a successor", || self.folder.path().join("cotensor.sock.successor").exists());
        next.unwrap()
    }

    /// Starts the program again on the same socket.
    pub(crate) fn start_again(&mut self) {
        self.supervisor = spawn(&self.command, &self.arguments);
    }

    /// The error of the program when it is started beside the running daemon.
    pub(crate) fn refused(&self) -> String {
        self.refused_with(&[])
    }

    /// The same with more arguments.
    pub(crate) fn refused_with(&self, more: &[OsString]) -> String {
        let output = Command::new(PROGRAM).args(&self.arguments).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn connect(&self, client: &str) -> Arc<ClientStore> {
        ClientStore::connect(Some(&self.socket), client).unwrap()
    }

    pub(crate) fn supervisor(&self) -> u32 {
        self.supervisor.id()
    }

    /// The current server of the supervisor.
    pub(crate) fn server(&self) -> u32 {
        let mut found = None;
        until("there is a server", || {
            found = children(self.supervisor()).first().copied();
            found.is_some()
        });
        found.unwrap()
    }

    /// All processes of this daemon.
    pub(crate) fn running(&self) -> BTreeSet<u32> {
        with_argument(&self.socket).into_iter().collect()
    }

    /// Kills the server, and waits for the next one.
    pub(crate) fn kill_server(&self) {
        let server = self.server();
        signal(server, Signal::KILL);
        until("the next server starts", || children(self.supervisor()).first().is_some_and(|next| *next != server));
    }

    /// Stops the daemon by SIGTERM. Returns whether it succeeded.
    pub(crate) fn stop(&mut self) -> bool {
        signal(self.supervisor.id(), Signal::TERM);
        self.wait_for_success()
    }

    /// Waits for the end of the supervisor. Returns whether it succeeded.
    pub(crate) fn wait_for_success(&mut self) -> bool {
        self.supervisor.wait().unwrap().success()
    }
}

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_cotensor-daemon");

fn spawn(command: &[OsString], arguments: &[OsString]) -> Child {
    Command::new(&command[0]).args(&command[1..]).args(arguments).spawn().unwrap()
}

impl Drop for Processes {
    fn drop(&mut self) {
        // A server would start another supervisor.
        for child in children(self.supervisor.id()) {
            signal(child, Signal::KILL);
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        // A replacement may have been started in between.
        until("no daemon listens", || {
            let listening = ClientStore::connect(Some(&self.socket), "last").is_ok();
            for pid in with_argument(&self.socket) {
                signal(pid, Signal::KILL);
            }
            !listening
        });
    }
}

/// The processes with this socket as first argument.
pub(crate) fn with_argument(socket: &std::path::Path) -> Vec<u32> {
    let wanted = socket.as_os_str().as_encoded_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let started = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(wanted)
    };
    pids.filter(started).collect()
}

/// The living children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let child = |pid: &u32| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() != Some("Z") && fields.next() == Some(&parent.to_string())
    };
    pids.filter(child).collect()
}

/// Runs a test that the others ignore, as a process with `variables`. Waits until it prints a line that `is_ready`, which gets each line.
pub(crate) fn start_test<V: AsRef<OsStr>>(
    test: &str,
    variables: impl IntoIterator<Item = (&'static str, V)>,
    is_ready: impl FnMut(String) -> bool,
) -> Child {
    let mut command = test_command(test);
    command.envs(variables);
    start_command(command, is_ready)
}

/// The command that runs a test which the others ignore.
pub(crate) fn test_command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

/// Starts a process. Waits until it prints a line that `is_ready`, which gets each line.
pub(crate) fn start_command(mut command: Command, is_ready: impl FnMut(String) -> bool) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(is_ready), "{command:?} ended before it was ready");
    child
}

/// Sends a signal. Waits until a process that is to stop has stopped: one of its threads could reconnect meanwhile.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
    if signal == Signal::STOP {
        until("every thread is stopped", || is_stopped(pid));
    }
}

/// Waits until the daemon has no tensor and no bytes.
pub(crate) fn settles_empty(processes: &Processes) {
    let store = processes.connect("inspector");
    let mut seen = String::new();
    let start = Instant::now();
    loop {
        let stats = store.stats();
        let list =
            store.request::<p::List>(&p::ListParams { prefix: String::new(), limit: 100, order: p::ListOrder::Name });
        if list.as_ref().is_ok_and(|list| list.tensors.is_empty()) && stats.memory_usage_bytes == 0 {
            return;
        }
        if start.elapsed() > WAIT_TIMEOUT {
            seen.push_str(&format!("{} bytes, {list:?}", stats.memory_usage_bytes));
            panic!("not everything was freed: {seen}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `bytes` bytes that identify a tensor by `number`.
pub(crate) fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut content: Vec<u8> = number.to_le_bytes().into_iter().take(bytes).collect();
    content.resize_with(bytes, || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    content
}

/// Whether `bytes` are the complete [`content`] of one number.
pub(crate) fn is_content(bytes: &[u8]) -> bool {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes == content(number, bytes.len())
}

pub(crate) fn put(store: &ClientStore, name: &str, bytes: &[u8], retention: Retention) -> Lease {
    let spec = cotensor_store::TensorSpec { retention, ..super::spec(name, bytes.len()) };
    let mut reservation = store.reserve(spec, &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}
