//! HTTP of a daemon that was started without it, at the request of a client on the Unix socket.

use super::config::HttpConfig;
use super::listening::HttpListening;
use crate::daemon::Daemon;
use cotensor_client::{default_port, port_owner};
use cotensor_core::{Error, ErrorKind, Result};
use std::future::Future;
use std::net::{Ipv4Addr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;

/// Turns HTTP on; see [`StartHttp`](crate::daemon::StartHttp).
pub(crate) fn start_http(
    daemon: &Arc<Daemon>,
    port: Option<u16>,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>> {
    Box::pin(start(daemon, port))
}

async fn start(daemon: &Arc<Daemon>, port: Option<u16>) -> Result<()> {
    let _one = daemon.http_start.lock().await;
    if daemon.http().is_ok() {
        return Ok(());
    }
    let Some(link) = &daemon.events.link else {
        let message = "this daemon is a part of a program that starts it without HTTP: start it with an HTTP address";
        return Err(Error::new(ErrorKind::Refused, message));
    };
    let listen = (Ipv4Addr::LOCALHOST, port.map_or_else(default_port, Ok)?).into();
    let config = HttpConfig { listen, ..HttpConfig::default() };
    let listener = match TcpListener::bind(listen) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && port.is_none() => {
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        }
        outcome => outcome,
    };
    let listener = listener.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let owner = port_owner(listen).unwrap_or_else(|| "another program".to_owned());
            let message = format!("{owner} has {listen}: end it, or name another port");
            Error::new(ErrorKind::Conflict, message).in_field("port")
        }
        _ => Error::io(format!("listening on {listen}"), &error),
    })?;
    let listening = HttpListening::on(listener, config, &daemon.config.socket)?;
    link.started_http(&listening.listener)?;
    tracing::info!("HTTP on http://{} at the request of a client", listening.address());
    let mut stopping = daemon.stopping.subscribe();
    let stopped = async move { drop(stopping.wait_for(|&stopping| stopping).await) };
    let serving = daemon.serve_http(listening, stopped);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!("HTTP has ended: {error}");
        }
    });
    Ok(())
}
