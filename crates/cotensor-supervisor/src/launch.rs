//! How the daemon's processes start each other, and their roles.

use cotensor_core::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

/// How the kernel marks the path of a running program whose file was removed or replaced.
const DELETED: &[u8] = b" (deleted)";

/// The program that a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Image {
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

    /// The command without a role.
    pub fn command(&self, image: Image) -> Command {
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

    /// Starts a process with a role, and with `socket` as its standard input.
    ///
    /// # Errors
    /// `Io` when the program cannot be started.
    pub(crate) fn start(&self, image: Image, role: Role, socket: UnixStream) -> Result<Child> {
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

/// The role of a process of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The supervisor that a user or the system started. It runs servers until a signal stops it.
    #[default]
    Foreground,
    /// A server, started by a supervisor.
    Server,
    /// A replacement supervisor, started by a server.
    Supervisor,
}

impl Role {
    /// The argument that names the role: a daemon starts its program again with the same arguments, and
    /// this one with its value at their end.
    pub const FLAG: &'static str = "--role";

    fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Server => "server",
            Self::Supervisor => "supervisor",
        }
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let roles = [Self::Foreground, Self::Server, Self::Supervisor];
        let unknown = || Error::invalid(format!("{name:?} is not a role: this argument is for the daemon itself"));
        roles.into_iter().find(|role| role.name() == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
