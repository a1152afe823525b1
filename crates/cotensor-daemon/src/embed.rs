//! A daemon inside a process that needs one and finds none.

use crate::{Config, Daemon, Listening};
use cotensor_client::ClientStore;
use cotensor_core::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long two processes may take to agree on which of them is the daemon.
const AGREE: Duration = Duration::from_secs(10);
/// Threads of an embedded daemon.
const WORKERS: usize = 2;

/// A daemon that runs on threads of this process, until this is dropped. Others connect to it as to any other.
pub struct Embedded {
    daemon: Arc<Daemon>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a daemon.
    ///
    /// # Errors
    /// `Conflict` when one listens at `config.socket` already; `Io` for what the system refuses.
    pub fn start(config: Config) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("starting a daemon in this process", &error);
        let listening = Listening::bind(&config.socket)?;
        let daemon = Daemon::new(config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("cotensor-daemon")
            .enable_all()
            .build()
            .map_err(io)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&daemon);
        let run = move || {
            if let Err(error) = runtime.block_on(serving.serve(&listening, async { drop(stopped.await) })) {
                tracing::error!("the daemon in this process has stopped: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("cotensor-daemon".to_owned()).spawn(run).map_err(io)?;
        Ok(Self { daemon, stop: Some(stop), thread: Some(thread) })
    }

    /// The daemon.
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Connects to the daemon at `config.socket`, or starts one in this process with that configuration and connects to it.
/// Of several processes that do this at the same time, one is the daemon. What was started serves until it is dropped.
///
/// # Errors
/// As [`ClientStore::connect`] and [`Embedded::start`].
pub fn connect_or_embed(config: &Config, client: &str) -> Result<(Arc<ClientStore>, Option<Embedded>)> {
    let start = Instant::now();
    loop {
        match ClientStore::connect(Some(&config.socket), client) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            outcome => return Ok((outcome?, None)),
        }
        match Embedded::start(config.clone()) {
            Ok(embedded) => return Ok((ClientStore::connect(Some(&config.socket), client)?, Some(embedded))),
            // Another process is a moment ahead: it listens soon, or has just stopped.
            Err(error) if error.kind() == ErrorKind::Conflict && start.elapsed() < AGREE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}
