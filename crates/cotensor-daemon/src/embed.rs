//! A daemon inside another process.

use crate::config::Config;
use crate::daemon::Daemon;
use crate::service::Service;
use crate::transport::http::HttpListening;
use cotensor_core::{Error, Result};
use cotensor_supervisor::Listening;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::watch;

/// Threads of an embedded daemon.
const WORKERS: usize = 2;

/// A daemon on threads of this process. Dropping it stops the daemon. Other processes connect to it as to any daemon.
pub struct Embedded {
    daemon: Arc<Daemon>,
    http: Option<SocketAddr>,
    token_file: Option<PathBuf>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a daemon.
    ///
    /// # Errors
    /// `Conflict` when one listens at `config.socket` already; `Io` for what the system refuses.
    pub fn start(config: Config) -> Result<Self> {
        Self::serve(Service { config, http: None })
    }

    /// Starts a daemon, with HTTP if `http` is set.
    ///
    /// # Errors
    /// As [`start`](Self::start); `Io` when the address is in use; `Refused` or `Invalid` for an unusable token file.
    pub fn serve(Service { config, http }: Service) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("starting a daemon in this process", &error);
        let mut listening = Listening::bind(&config.socket)?;
        let listening_http = http.map(|http| HttpListening::bind(http, &config.socket)).transpose()?;
        let http = listening_http.as_ref().map(HttpListening::address);
        let token_file = listening_http.as_ref().map(|http| http.token_file().to_path_buf());
        let daemon = Daemon::new(config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("cotensor-daemon")
            .enable_all()
            .build()
            .map_err(io)?;
        let (stop, mut stopped) = watch::channel(());
        let mut stopped_too = stopped.clone();
        let serving = Arc::clone(&daemon);
        let over_http =
            listening_http.map(|http| daemon.serve_http(http, async move { drop(stopped_too.changed().await) }));
        let run = move || {
            let on_socket = serving.serve(&mut listening, async move { drop(stopped.changed().await) });
            let over_http = async {
                let Some(over_http) = over_http else { return Ok(()) };
                over_http.await
            };
            let (on_socket, over_http) = runtime.block_on(async { tokio::join!(on_socket, over_http) });
            if let Err(error) = on_socket.and(over_http) {
                tracing::error!("the daemon in this process has stopped: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("cotensor-daemon".to_owned()).spawn(run).map_err(io)?;
        Ok(Self { daemon, http, token_file, stop: Some(stop), thread: Some(thread) })
    }

    /// The daemon.
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// The address of its HTTP server.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The path of the token file for HTTP clients.
    pub fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
