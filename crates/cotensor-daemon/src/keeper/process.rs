//! The processes of a daemon: how one starts the other, and how it ends.

use super::Role;
use cotensor_core::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How a server that has to go is waited for before it is killed.
pub(super) const GOING: Duration = Duration::from_millis(100);

/// How the daemon's processes start each other: a command, to which [`Role::FLAG`] and a role are added.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What is at this path when a process is started, so a new version takes over from an old one.
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launch {
    /// `program` with `arguments`, for a daemon inside an interpreter, say. A role at the arguments' end is left out: what
    /// was started in a role has it there.
    pub fn new(program: PathBuf, mut arguments: Vec<OsString>) -> Self {
        if let [.., flag, _] = &arguments[..]
            && flag == Role::FLAG
        {
            arguments.truncate(arguments.len() - 2);
        }
        Self { program, arguments }
    }

    /// The program that runs now, with the arguments that it was started with.
    ///
    /// # Errors
    /// `Io` when the system does not tell which that is.
    pub fn this_program() -> Result<Self> {
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", &error))?;
        Ok(Self::new(program, std::env::args_os().skip(1).collect()))
    }

    /// Starts a server with `socket` as its standard input.
    pub(super) fn server(&self, socket: UnixStream) -> Result<Server> {
        let child = self.start(Role::Server, socket)?;
        Ok(Server { pid: Some(child.id()), child: Some(child) })
    }

    /// Starts a keeper that goes on for one that died.
    pub(super) fn keeper(&self, socket: UnixStream) -> Result<Child> {
        self.start(Role::Keeper, socket)
    }

    fn start(&self, role: Role, socket: UnixStream) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args([Role::FLAG, role.name()]).stdin(Stdio::from(OwnedFd::from(socket)));
        command.spawn().map_err(|error| Error::io("starting", &error).in_file(&self.program))
    }
}

/// A server as its keeper sees it.
pub(super) struct Server {
    /// Unless another keeper started it.
    pub(super) child: Option<Child>,
    pub(super) pid: Option<u32>,
}

impl Server {
    /// Has it stop, which it says before it does.
    pub(super) fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Only while its end of the socket pair is open: the number is still its own then.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Makes sure that it is gone: two servers must not listen on one socket.
    pub(super) fn end(&mut self) {
        self.end_soon();
        if let Some(child) = &mut self.child {
            drop(child.wait());
        }
    }

    /// Kills it unless it goes by itself. It may take a while to be gone, if it writes to a slow disk, and does nothing more
    /// meanwhile.
    pub(super) fn end_soon(&mut self) {
        if !self.goes()
            && let Some(child) = &mut self.child
        {
            drop(child.kill());
            self.goes();
        }
    }

    /// Whether it is gone a moment from now.
    fn goes(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let start = Instant::now();
        while let Ok(None) = child.try_wait() {
            if start.elapsed() >= GOING {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// The keeper that started this server.
pub(super) struct Parent(Pid);

impl Parent {
    /// The process that made the pair whose end `socket` is, while it is this one's parent: dead, it is not.
    pub(super) fn at_the_other_end(socket: &UnixStream) -> Option<Self> {
        let pid = rustix::net::sockopt::socket_peercred(socket).ok()?.pid;
        Some(Self(pid)).filter(Self::lives)
    }

    /// Only a living process is a parent, and its number is its own: another process adopts those it leaves.
    fn lives(&self) -> bool {
        rustix::process::getppid() == Some(self.0)
    }

    /// Kills it, and waits for its end.
    pub(super) fn end(&self) {
        while self.lives() {
            let _ = kill_process(self.0, Signal::KILL);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The socket that this process was started with.
pub(super) fn standard_input() -> Result<UnixStream> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::io("taking standard input over", &error))?;
    if rustix::net::sockopt::socket_domain(&fd) != Ok(rustix::net::AddressFamily::UNIX) {
        return Err(Error::invalid("standard input is no socket: this is started by `cotensor serve` alone"));
    }
    Ok(fd.into())
}

/// Ends this process as SIGTERM from elsewhere does.
pub(super) fn stop_this_process() {
    let _ = kill_process(rustix::process::getpid(), Signal::TERM);
}
