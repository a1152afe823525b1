//! Runs a daemon until a signal stops it.

use crate::config::Config;
use crate::daemon::Daemon;
use crate::transport::http::{HttpConfig, HttpListening};
use cotensor_core::{Error, Result};
use cotensor_memory::process::trim_heap;
use cotensor_supervisor::{HEAP_TRIM_DELAY, Listening, StopSignals};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The time for tasks to end after the stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// The services of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// The store and its socket.
    pub config: Config,
    /// HTTP; none to serve the socket alone.
    pub http: Option<HttpConfig>,
}

/// A daemon that is ready for clients.
#[derive(Debug)]
pub struct Ready<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// A number that differs between servers.
    pub epoch: u64,
    /// The address of its HTTP server.
    pub http: Option<SocketAddr>,
    /// The file of the token that HTTP clients need.
    pub token_file: Option<PathBuf>,
    /// The server's process.
    pub server: Option<u32>,
    /// The number of tensors that it has taken over.
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
        // Set by a signal, and by the first of the two servers that fails, so that the other one stops.
        let (stop, stopped) = watch::channel(false);
        let until_stopped = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|&stopped| stopped).await;
        };
        let over_http = http.map(|http| daemon.serve_http(http, until_stopped(stopped.clone())));
        ready()?;
        let signalled = async {
            tokio::select! {
                () = signals.received() => {}
                () = until_stopped(stopped.clone()) => return,
            };
            // The signal is not named: the supervisor forwards each one as SIGTERM.
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
            never = trim_heap_after_sessions(daemon) => match never {},
        };
        on_socket.and(over_http)
    });
    runtime.shutdown_timeout(STOP_TIMEOUT);
    outcome
}

/// Trims the heap after sessions have ended: the allocator would keep nearly all of their memory. Only in the daemon's
/// own process, not where it is embedded.
async fn trim_heap_after_sessions(daemon: &Daemon) -> Infallible {
    loop {
        daemon.ended.notified().await;
        tokio::time::sleep(HEAP_TRIM_DELAY).await;
        let _ = tokio::task::spawn_blocking(trim_heap).await;
    }
}
