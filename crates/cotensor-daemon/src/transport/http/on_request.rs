//! HTTP of a daemon that was started without it, at the request of a client on the Unix socket.

use super::config::HttpConfig;
use super::listening::HttpListening;
use crate::daemon::Daemon;
use cotensor_client::{default_port, port_owner};
use cotensor_core::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

impl Daemon {
    /// Serves HTTP on loopback until the daemon stops, unless it does so already. Without a `port` it is the default one, or a
    /// free one if another program has that. The next server of this daemon continues.
    ///
    /// # Errors
    /// `Refused` for a daemon that is a part of another program; `Conflict` when another program has `port`; `Io`; those of
    /// the token files.
    pub(crate) async fn start_http(self: &Arc<Self>, port: Option<u16>) -> Result<()> {
        let _one = self.http_start.lock().await;
        if self.http().is_ok() {
            return Ok(());
        }
        let Some(link) = &self.events.link else {
            let message =
                "this daemon is a part of a program that starts it without HTTP: start it with an HTTP address";
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
        let listening = HttpListening::on(listener, config, &self.config.socket)?;
        link.started_http(&listening.listener)?;
        tracing::info!("HTTP on http://{} at the request of a client", listening.address());
        let mut stopping = self.stopping.subscribe();
        let stopped = async move { drop(stopping.wait_for(|&stopping| stopping).await) };
        let serving = self.serve_http(listening, stopped);
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!("HTTP has ended: {error}");
            }
        });
        Ok(())
    }
}
