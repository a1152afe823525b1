//! A daemon of the demo's own, with an empty store.

use crate::options::DemoOptions;
use cotensor::client::ClientStore;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::memory::process;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time-out of the start and of the end of the daemon.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between attempts to connect.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(10);
/// The start of the names of variables that would change the daemon.
const VARIABLES: &str = "COTENSOR_";
/// The variable by which a service manager would learn that this daemon is ready.
const NOTIFY: &str = "NOTIFY_SOCKET";

/// A daemon that ends when this is dropped.
pub(super) struct Daemon {
    supervisor: Child,
    pub(super) socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts `serve` of the demo's program on a socket of its own, and waits until it answers.
    ///
    /// # Errors
    /// `Io` when it does not start or the demo is stopped; the message contains its standard error.
    pub(super) fn start(options: &DemoOptions) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|error| Error::io("cannot create a folder", &error))?;
        let (socket, log) = (folder.path().join("cotensor.sock"), folder.path().join("log"));
        let file = File::create(&log).map_err(|error| Error::io("cannot create", &error).in_file(&log))?;
        let mut command = Command::new(&options.program);
        command.args(&options.program_arguments).arg("serve").arg("--socket").arg(&socket);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(VARIABLES)) {
            command.env_remove(name);
        }
        command.env_remove(NOTIFY).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let supervisor = command.spawn().map_err(|error| Error::io("cannot start the daemon", &error))?;
        let mut daemon = Self { supervisor, socket, _folder: folder };
        let start = Instant::now();
        while ClientStore::connect(Some(&daemon.socket), "demo").is_err() {
            let ended = !matches!(daemon.supervisor.try_wait(), Ok(None));
            if ended || start.elapsed() > DAEMON_TIMEOUT || options.stop.load(Ordering::Relaxed) != 0 {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let message = format!("the daemon does not answer: {}", log.trim());
                return Err(Error::new(ErrorKind::Io, message));
            }
            std::thread::sleep(ATTEMPT_INTERVAL);
        }
        Ok(daemon)
    }

    /// The server and the supervisor.
    ///
    /// # Errors
    /// `NotFound` when the server has ended.
    pub(super) fn processes(&self) -> Result<[u32; 2]> {
        let supervisor = self.supervisor.id();
        let server = process::children(supervisor).first().copied();
        Ok([server.ok_or_else(|| Error::not_found("the daemon has no server"))?, supervisor])
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Best effort: a daemon that ended needs no signal, one that does not end is killed.
        if let Some(pid) = i32::try_from(self.supervisor.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while matches!(self.supervisor.try_wait(), Ok(None)) {
            if start.elapsed() > DAEMON_TIMEOUT {
                let _ = self.supervisor.kill();
                let _ = self.supervisor.wait();
                return;
            }
            std::thread::sleep(ATTEMPT_INTERVAL);
        }
    }
}
