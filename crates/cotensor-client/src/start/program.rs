use super::starting;
use crate::settings::CONFIG;
use cotensor_core::Result;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The variables that a daemon gets: none has a secret, and none changes how programs are loaded.
const KEPT: &[&str] = &[
    "DBUS_SESSION_BUS_ADDRESS",
    "GPUS_PER_NODE",
    "HOME",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "LANG",
    "LOGNAME",
    "ORT_DYLIB_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "RANK",
    "TMPDIR",
    "TZ",
    "USER",
];
/// The beginnings of the names of further variables.
const KEPT_PREFIXES: &[&str] = &["COTENSOR_", "LC_", "XDG_"];
/// Runs a program in a control group of its own, so that the daemon outlives the service that started it.
const SYSTEMD_RUN: &str = "/usr/bin/systemd-run";
/// The name of the command, beside the executable of a Rust program.
const COMMAND: &str = "cotensor";

/// The program that runs a daemon: the command `cotensor` of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonProgram {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl DaemonProgram {
    /// `program` with `arguments`, such as an interpreter with `-m cotensor`. `serve` and its options follow.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<OsString>) -> Self {
        Self { program: program.into(), arguments }
    }

    /// The command `cotensor` beside the executable of this process: in the same folder, or in the folder above, where cargo
    /// puts it for tests and examples.
    pub fn beside_this_executable() -> Option<Self> {
        let executable = std::env::current_exe().ok()?;
        let folders = executable.ancestors().skip(1).take(2);
        let program = folders.map(|folder| folder.join(COMMAND)).find(|program| program.is_file())?;
        Some(Self::new(program, Vec::new()))
    }

    /// Starts a daemon at `socket` and waits until it answers; does nothing if one answers. Of several processes that do this
    /// at the same time, one starts it. `arguments` follow those of the program: `serve` and its options. The daemon runs in
    /// `folder`, with a session of its own, no descriptor and few variables of this process. Its log is beside the socket.
    ///
    /// # Errors
    /// `Unreachable` when the daemon ends at its start, with the last line of its log, and when the system refuses a file or the
    /// process; `TimedOut`; `Refused` for a folder of the socket that other users can change; `Invalid` for a socket or log whose
    /// place another kind of file has.
    pub fn start(&self, socket: &Path, arguments: &[OsString], folder: &Path, timeout: Duration) -> Result<()> {
        let command = |in_scope| self.command(arguments, folder, in_scope);
        starting::start(socket, &self.program, &command, Self::has_scopes(), timeout)
    }

    /// The command with further arguments and a cleared environment. With `in_scope`, systemd runs it in a control group of
    /// its own.
    fn command(&self, arguments: &[OsString], folder: &Path, in_scope: bool) -> Command {
        let mut command = if in_scope {
            let mut command = Command::new(SYSTEMD_RUN);
            command.args(["--user", "--scope", "--quiet", "--collect", "--"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command.args(&self.arguments).args(arguments).current_dir(folder).env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
        if let Some(config) = std::env::var_os(CONFIG).filter(|config| !config.is_empty()) {
            // The daemon's working directory is another one.
            command.env(CONFIG, std::path::absolute(&config).unwrap_or_else(|_| config.into()));
        }
        command
    }

    /// Whether this user has a systemd that can run a program in a control group of its own.
    fn has_scopes() -> bool {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        folder.is_some_and(|folder| folder.join("systemd/private").exists()) && Path::new(SYSTEMD_RUN).exists()
    }
}

fn is_kept(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_loader_variables_are_not_kept() {
        for name in [
            "HF_TOKEN",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "AWS_SECRET_ACCESS_KEY",
            "PATH",
            "NOTIFY_SOCKET",
            "LISTEN_FDS",
        ] {
            assert!(!is_kept(name.as_ref()), "{name}");
        }
        for name in ["HOME", "COTENSOR_MAX_MEMORY", "XDG_RUNTIME_DIR", "HF_HOME", "LC_ALL"] {
            assert!(is_kept(name.as_ref()), "{name}");
        }
    }
}
