//! One model process: its start, its end and the connections to it.

use super::config::ModelsConfig;
use cotensor_client::protocol::ModelEngine;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::{is_exiting, state};
use cotensor_supervisor::Image;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

/// The argument before the path of the process's socket.
pub(super) const V1_FLAG: &str = "--v1";
/// The argument before the path of a library of the fast engine.
const LIBRARY_FLAG: &str = "--library";
/// The most bytes of the text of a process that is ready.
const READY_BYTES_MAX: usize = 64 << 10;
/// The time for the process to end after SIGTERM when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
/// The time for a process that closed its standard output, or was killed, to end.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the state of the process is read.
const STATE_INTERVAL: Duration = Duration::from_secs(1);

/// A process that is ready, or was.
pub(crate) struct ModelProcess {
    pub(crate) pid: u32,
    /// The path of its Unix socket.
    pub(crate) path: PathBuf,
    /// The engine that models get, as the process says; none from a process that does not say it.
    engine: Mutex<Option<ModelEngine>>,
    since: Instant,
    /// The time of its end.
    ended: watch::Receiver<Option<Instant>>,
}

impl ModelProcess {
    /// Starts the process with `libraries` of the fast engine, and waits until it is ready. When `stop` is set, the process is ended.
    ///
    /// # Errors
    /// `Unreachable` when it ends at its start, or the daemon stops; `TimedOut`; `Io`.
    pub(super) async fn start(
        config: &ModelsConfig,
        daemon: &Path,
        path: PathBuf,
        libraries: &[PathBuf],
        mut stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let io = |error| Error::io("starting the model process", &error);
        let mut command = Command::from(config.launch.command(Image::Installed));
        command.arg("--socket").arg(daemon).arg("--json").arg(V1_FLAG).arg(&path);
        for library in libraries {
            command.arg(LIBRARY_FLAG).arg(library);
        }
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
        let text = match ready {
            Ok(Ok(Some(text))) => text,
            Ok(Ok(None)) => {
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
        };
        tracing::info!("the model process {pid} is ready");
        let (end, ended) = watch::channel(None);
        let engine = Mutex::new(engine_of(&text));
        let process = Self { pid, path, engine, since: Instant::now(), ended };
        let file = process.path.clone();
        let stopped = stays_stopped(pid, config.stopped_timeout);
        tokio::spawn(async move {
            match run(child, stdin, stdout, stop, stopped).await {
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

    /// The engine that models get, if the process says it.
    pub(crate) fn engine(&self) -> Option<ModelEngine> {
        lock(&self.engine).clone()
    }

    pub(super) fn set_engine(&self, engine: ModelEngine) {
        *lock(&self.engine) = Some(engine);
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        // An error says that the task that watches the process has ended.
        let _ = self.ended.clone().wait_for(Option::is_some).await;
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

/// Waits until the process writes a line to its standard output, or all lines of a JSON object. None when it closes it before. A text that
/// is too long is cut off.
async fn is_ready(stdout: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Vec<u8>>> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let bytes = stdout.read(&mut part).await?;
        text.extend_from_slice(&part[..bytes]);
        let is_object = text.starts_with(b"{");
        let is_whole = if is_object { is_json(&text) } else { text.contains(&b'\n') };
        if is_whole || text.len() > READY_BYTES_MAX {
            return Ok(Some(text));
        }
        if bytes == 0 {
            return Ok(None);
        }
    }
}

fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// The engine in the JSON object that the process prints when it is ready. None for a process that does not state it.
fn engine_of(text: &[u8]) -> Option<ModelEngine> {
    #[derive(Deserialize)]
    struct Ready {
        engine: ModelEngine,
    }
    serde_json::from_slice::<Ready>(text).ok().map(|ready| ready.engine)
}

/// Returns when a process has been stopped for `timeout`. The process is observed, not a clock: if this process is stopped as well, the
/// time does not pass. Under a debugger, the state of a process is `t`.
async fn stays_stopped(pid: u32, timeout: Duration) {
    let mut stopped = Duration::ZERO;
    loop {
        tokio::time::sleep(STATE_INTERVAL).await;
        if state(pid) != Some('T') {
            stopped = Duration::ZERO;
            continue;
        }
        if stopped.is_zero() {
            let seconds = timeout.as_secs();
            tracing::warn!(
                "the model process {pid} is stopped: `kill -CONT {pid}` continues it; otherwise it is killed after {seconds} s"
            );
        }
        stopped += STATE_INTERVAL;
        if stopped > timeout {
            return tracing::warn!("the model process {pid} was stopped for {} s and is killed", timeout.as_secs());
        }
    }
}

/// Follows a process until its end. Returns its status unless it was ended because of `stop` or because it was `stopped`.
async fn run(
    mut child: Child,
    stdin: Option<ChildStdin>,
    mut stdout: ChildStdout,
    mut stop: watch::Receiver<bool>,
    stopped: impl Future<Output = ()>,
) -> Option<ExitStatus> {
    // Further output would block the process when the pipe is full.
    let drain = async {
        let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
        std::future::pending::<()>().await;
    };
    let status = tokio::select! {
        status = child.wait() => Some(status.unwrap_or_default()),
        _ = stop.wait_for(|&stop| stop) => None,
        () = drain => None,
        () = stopped => None,
    };
    if status.is_none() {
        if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
    drop(stdin);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn process_stays_stopped_until_it_continues() {
        let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (pid, process) = (child.id(), Pid::from_child(&child));
        let becomes = |wanted: fn(char) -> bool| {
            while !state(pid).is_some_and(wanted) {
                std::thread::yield_now();
            }
        };
        let ends_within =
            |seconds| tokio::time::timeout(Duration::from_secs(seconds), stays_stopped(pid, Duration::from_secs(15)));
        kill_process(process, Signal::STOP).unwrap();
        becomes(|state| state == 'T');
        ends_within(15).await.unwrap_err();
        kill_process(process, Signal::CONT).unwrap();
        becomes(|state| state != 'T');
        ends_within(3600).await.unwrap_err();
        kill_process(process, Signal::STOP).unwrap();
        becomes(|state| state == 'T');
        ends_within(17).await.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
