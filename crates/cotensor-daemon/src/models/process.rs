//! One model process: its start, its end and the connections to it.

use super::config::ModelsConfig;
use crate::supervisor::Image;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::is_exiting;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

/// The argument before the path of the process's socket.
pub(super) const V1_FLAG: &str = "--v1";
/// The time for the process to end after SIGTERM when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
/// The time for a process that closed its standard output, or was killed, to end.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A process that is ready, or was.
pub(crate) struct ModelProcess {
    pub(crate) pid: u32,
    /// The path of its Unix socket.
    pub(crate) path: PathBuf,
    since: Instant,
    /// The time of its end.
    ended: watch::Receiver<Option<Instant>>,
}

impl ModelProcess {
    /// Starts the process and waits until it is ready. When `stop` is set, the process is ended.
    ///
    /// # Errors
    /// `Unreachable` when it ends at its start, or the daemon stops; `TimedOut`; `Io`.
    pub(super) async fn start(
        config: &ModelsConfig,
        daemon: &Path,
        path: PathBuf,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let io = |error| Error::io("starting the model process", &error);
        let mut command = Command::from(config.launch.command(Image::Installed));
        command.arg("--socket").arg(daemon).arg("--json").arg(V1_FLAG).arg(&path);
        // Its standard input ends when this process ends, also by SIGKILL.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(io)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(pid), Some(mut stdout)) = (child.id(), stdout) else {
            return Err(Error::new(ErrorKind::Unreachable, "the model process ended at its start"));
        };
        let ready = tokio::select! {
            ready = tokio::time::timeout(config.start_timeout, is_ready(&mut stdout)) => ready,
            _ = stop.wait_for(|&stop| stop) => return Err(stopping()),
        };
        match ready {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                let status = tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await;
                let status = status.ok().and_then(std::result::Result::ok);
                let status =
                    status.map_or_else(|| "its standard output is closed".to_owned(), |status| status.to_string());
                let message =
                    format!("the model process ended at its start ({status}); the daemon's log has the reason");
                return Err(Error::new(ErrorKind::Unreachable, message));
            }
            Ok(Err(error)) => return Err(io(error)),
            Err(_) => {
                let seconds = config.start_timeout.as_secs();
                let message = format!("the model process was not ready after {seconds} s and was killed");
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        }
        tracing::info!("the model process {pid} is ready");
        let (end, ended) = watch::channel(None);
        let process = Self { pid, path, since: Instant::now(), ended };
        let file = process.path.clone();
        tokio::spawn(async move {
            match run(child, stdin, stdout, stop).await {
                Some(status) if status.success() => tracing::info!("the model process {pid} ended"),
                Some(status) => tracing::warn!("the model process {pid} ended: {status}"),
                // After a kill, the file is left. A process that replaces this one is not started any more.
                None => drop(std::fs::remove_file(file)),
            }
            end.send_replace(Some(Instant::now()));
        });
        Ok(process)
    }

    /// Whether it has not ended, and does not end. The kernel closes the connections of a killed process before this
    /// process can learn of its end.
    pub(crate) fn is_running(&self) -> bool {
        self.ended.borrow().is_none() && self.ended.has_changed().is_ok() && !is_exiting(self.pid)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        // Without its task, nobody would see the end.
        drop(self.ended.clone().wait_for(Option::is_some).await);
    }

    /// How long it served until its end.
    pub(super) fn uptime(&self) -> Duration {
        self.ended.borrow().unwrap_or_else(Instant::now).duration_since(self.since)
    }
}

/// The error of a request while the daemon stops.
pub(super) fn stopping() -> Error {
    Error::new(ErrorKind::Unreachable, "the daemon is stopping")
}

/// Waits until the process writes to its standard output. False when it closes it before.
async fn is_ready(stdout: &mut (impl AsyncRead + Unpin)) -> std::io::Result<bool> {
    Ok(stdout.read(&mut [0; 4096]).await? > 0)
}

/// Follows a process until its end. Returns its status unless it was ended because of `stop`.
async fn run(
    mut child: Child,
    stdin: Option<ChildStdin>,
    mut stdout: ChildStdout,
    mut stop: watch::Receiver<bool>,
) -> Option<ExitStatus> {
    // Further output would block the process when the pipe is full.
    let drain = async {
        drop(tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await);
        std::future::pending::<()>().await;
    };
    let status = tokio::select! {
        status = child.wait() => Some(status.unwrap_or_default()),
        _ = stop.wait_for(|&stop| stop) => None,
        () = drain => None,
    };
    if status.is_none() {
        if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
            drop(child.kill().await);
        }
    }
    drop(stdin);
    status
}
