//! A daemon in the foreground, until it is told to stop.

use crate::{Config, Daemon, Listening};
use cotensor_core::{Error, Result};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long tasks may take to end once everything is told to stop.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// Runs a daemon until SIGTERM or SIGINT. `ready` is called once clients can connect. The socket is gone afterwards.
///
/// # Errors
/// `Conflict` when another daemon listens on the socket, else `Io`.
pub fn run(config: Config, ready: impl FnOnce(&Daemon)) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("starting threads", &error))?;
    let outcome = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (watch(SignalKind::terminate())?, watch(SignalKind::interrupt())?);
        let listening = Listening::bind(&config.socket)?;
        let daemon = Daemon::new(config)?;
        ready(&daemon);
        let stop = async {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!("stopping on {name}");
        };
        daemon.serve(&listening, stop).await
    });
    runtime.shutdown_timeout(STOP_PATIENCE);
    outcome
}

fn watch(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Error::io("watching for signals", &error))
}
