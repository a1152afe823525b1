//! A daemon at work, until it is told to stop.

use crate::config::{Config, HEAP_TRIM_DELAY};
use crate::daemon::Daemon;
use crate::http::{HttpConfig, HttpListening};
use crate::signals::StopSignals;
use crate::socket::Listening;
use cotensor_core::{Error, Result};
use cotensor_memory::process::trim_heap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long tasks may take to end once everything is told to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// What a daemon does, beside its parts.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// The store and its socket.
    pub config: Config,
    /// HTTP, if it is wanted.
    pub http: Option<HttpConfig>,
}

/// A daemon that clients can connect to.
#[derive(Debug)]
pub struct Ready<'a> {
    /// How it runs.
    pub config: &'a Config,
    /// A number that differs between servers.
    pub epoch: u64,
    /// Where it answers HTTP, if it does.
    pub http: Option<SocketAddr>,
    /// The file of the token that HTTP clients need.
    pub token_file: Option<PathBuf>,
    /// The process that serves.
    pub server: Option<u32>,
    /// How many tensors it has from a daemon before it.
    pub resumed: usize,
}

/// Serves until SIGTERM, SIGINT or SIGHUP. `ready` is called once clients are about to be answered.
///
/// # Errors
/// `Io` when a socket fails.
pub(crate) fn serve(
    daemon: &Arc<Daemon>,
    listening: &mut Listening,
    http: Option<HttpListening>,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("starting threads", &error))?;
    let outcome = runtime.block_on(async {
        let mut signals = StopSignals::new()?;
        // Set by a signal, and by whichever end fails first, so that the other ends too.
        let (stop, stopped) = watch::channel(false);
        let until_stopped = |mut stopped: watch::Receiver<bool>| async move {
            drop(stopped.wait_for(|&stopped| stopped).await);
        };
        let over_http = http.map(|http| daemon.serve_http(http, until_stopped(stopped.clone())));
        ready()?;
        let signalled = async {
            tokio::select! {
                () = signals.received() => {}
                () = until_stopped(stopped.clone()) => return,
            };
            // Not by which signal: the supervisor passes every one on as SIGTERM.
            tracing::info!("stopping");
            stop.send_replace(true);
        };
        let on_socket = async {
            let outcome = daemon.serve(listening, signalled).await;
            stop.send_replace(true);
            outcome
        };
        let over_http = async {
            let Some(over_http) = over_http else { return Ok(()) };
            let outcome = over_http.await;
            stop.send_replace(true);
            outcome
        };
        let serving = async { tokio::join!(on_socket, over_http) };
        let (on_socket, over_http) = tokio::select! {
            outcomes = serving => outcomes,
            never = tidy(daemon) => match never {},
        };
        on_socket.and(over_http)
    });
    runtime.shutdown_timeout(STOP_TIMEOUT);
    outcome
}

/// Gives back what sessions took that have ended: the allocator would keep nearly all of it. Only in a process of the daemon's
/// own; one that it is embedded in decides for itself.
async fn tidy(daemon: &Daemon) -> Infallible {
    loop {
        daemon.ended.notified().await;
        tokio::time::sleep(HEAP_TRIM_DELAY).await;
        drop(tokio::task::spawn_blocking(trim_heap).await);
    }
}
