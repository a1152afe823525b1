//! The processes of a daemon: starting and ending them.

use super::role::Role;
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time for a server to exit before it is killed.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_millis(100);

/// A process that ran this long did not fail at its start.
pub(super) const STABLE_UPTIME: Duration = Duration::from_secs(1);
/// How the kernel marks the path of a running program whose file was removed or replaced.
const DELETED: &[u8] = b" (deleted)";

/// The program that a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Image {
    /// The file at the program's path: after an upgrade, the new version.
    #[default]
    Installed,
    /// The program of this process. The kernel keeps it when its file is removed or replaced.
    Running,
}

impl Image {
    /// The program to start next. After an installed program that failed at its start it is the running one, which
    /// works.
    pub(crate) fn next(self, lived: bool) -> Self {
        match self {
            Self::Installed if !lived => Self::Running,
            _ => Self::Installed,
        }
    }
}

/// How the daemon's processes start each other: a command, to which [`Role::FLAG`] and a role, or the arguments of the model
/// process, are added.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The path is opened at each start, so that a new version replaces an old one.
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

impl Launch {
    /// `program` with `arguments`, for example of an interpreter. Removes a role at the end of the arguments.
    pub fn new(program: PathBuf, mut arguments: Vec<OsString>) -> Self {
        if let [.., flag, _] = &arguments[..]
            && flag == Role::FLAG
        {
            arguments.truncate(arguments.len() - 2);
        }
        Self { program: installed(program), arguments, variables: Vec::new() }
    }

    /// Adds environment variables of the processes.
    #[must_use]
    pub fn with_variables(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// The program that runs now, with the arguments that it was started with.
    ///
    /// # Errors
    /// `Io` when the system does not know its path.
    pub fn this_program() -> Result<Self> {
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", &error))?;
        Ok(Self::new(program, std::env::args_os().skip(1).collect()))
    }

    /// Starts a server with `socket` as its standard input.
    pub(super) fn server(&self, image: Image, socket: UnixStream) -> Result<Server> {
        let child = self.start(image, Role::Server, socket)?;
        Ok(Server { pid: Some(child.id()), child: Some(child) })
    }

    /// Starts a supervisor that replaces one that died.
    pub(super) fn supervisor(&self, image: Image, socket: UnixStream) -> Result<Child> {
        self.start(image, Role::Supervisor, socket)
    }

    /// The command without a role.
    pub(crate) fn command(&self, image: Image) -> Command {
        let mut command = match image {
            Image::Installed => Command::new(&self.program),
            Image::Running => {
                tracing::warn!(
                    "{} was started last and ended at its start: starting the program that this process runs",
                    self.program.display()
                );
                Command::new("/proc/self/exe")
            }
        };
        command
            .arg0(&self.program)
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn start(&self, image: Image, role: Role, socket: UnixStream) -> Result<Child> {
        let mut command = self.command(image);
        command.args([Role::FLAG, role.name()]).stdin(Stdio::from(OwnedFd::from(socket)));
        command.spawn().map_err(|error| Error::io("starting", &error).in_file(&self.program))
    }
}

/// The installation path of a running program whose file may have been removed or replaced.
fn installed(program: PathBuf) -> PathBuf {
    match program.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(path) if !program.exists() => OsStr::from_bytes(path).into(),
        _ => program,
    }
}

/// The server of a supervisor.
pub(super) struct Server {
    /// None if another supervisor started it.
    pub(super) child: Option<Child>,
    pub(super) pid: Option<u32>,
}

impl Server {
    /// Sends SIGTERM. The server reports the stop before it ends.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// The caller has its end of the socket pair open, so its process number is not reused.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it and waits: two servers must not listen on one socket.
    pub(super) fn end(&mut self) {
        self.end_without_wait();
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }

    /// Kills it if it does not exit in time. It may still be in a system call on a slow disk afterwards, but runs no
    /// further code.
    pub(super) fn end_without_wait(&mut self) {
        if !self.wait_for_exit()
            && let Some(child) = &mut self.child
        {
            let _ = child.kill();
            self.wait_for_exit();
        }
    }

    /// Waits for its exit; false after [`EXIT_TIMEOUT`].
    fn wait_for_exit(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let start = Instant::now();
        while let Ok(None) = child.try_wait() {
            if start.elapsed() >= EXIT_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// The supervisor that started this server.
pub(super) struct Parent(Pid);

impl Parent {
    /// The process that made the socket pair, if it is the living parent of this one.
    pub(super) fn at_the_other_end(socket: &UnixStream) -> Option<Self> {
        let pid = Pid::from_raw(peer_credentials(socket.as_fd()).ok()?.pid?)?;
        Some(Self(pid)).filter(Self::is_alive)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// A dead process is no parent: another one adopts its children.
    fn is_alive(&self) -> bool {
        rustix::process::getppid() == Some(self.0)
    }

    /// Kills it, and waits for its end.
    pub(super) fn end(&self) {
        while self.is_alive() {
            let _ = kill_process(self.0, Signal::KILL);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The socket on standard input.
pub(super) fn standard_input() -> Result<UnixStream> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::io("taking standard input over", &error))?;
    if rustix::net::sockopt::socket_domain(&fd) != Ok(rustix::net::AddressFamily::UNIX) {
        return Err(Error::invalid("standard input is no socket: this is started by `cotensor serve` alone"));
    }
    Ok(fd.into())
}

/// Sends SIGTERM to this process.
pub(crate) fn stop_this_process() {
    let _ = kill_process(rustix::process::getpid(), Signal::TERM);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_memory::process;

    #[test]
    fn running_program_is_started_after_an_installed_one_that_fails() {
        let (installed, running) = (Image::Installed, Image::Running);
        assert_eq!(installed.next(false), running);
        for (image, lived) in [(installed, true), (running, false), (running, true)] {
            assert_eq!(image.next(lived), installed, "an upgrade is tried again");
        }
    }

    #[test]
    fn path_of_a_removed_program_is_its_installation_path() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("program (deleted)");
        assert_eq!(installed(odd.clone()), folder.path().join("program"));
        std::fs::write(&odd, "").unwrap();
        assert_eq!(installed(odd.clone()), odd);
    }

    #[test]
    fn stopped_process_has_state_t() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let start = Instant::now();
        while process::state(child.id()) != Some('T') && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(process::state(child.id()), Some('T'));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process::state(child.id()), None);
    }
}
