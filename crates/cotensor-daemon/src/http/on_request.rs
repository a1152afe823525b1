//! HTTP of a daemon that was started without it, at the request of a client on the Unix socket.

use super::config::{HttpConfig, default_port};
use super::listening::HttpListening;
use crate::daemon::Daemon;
use cotensor_core::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

impl Daemon {
    /// Serves HTTP on loopback until the daemon stops, unless it does so already. The port is the default one, or a free one
    /// if another program has it. The next server of this daemon continues.
    ///
    /// # Errors
    /// `Refused` for a daemon that is a part of another program; `Io`; those of the token files.
    pub(crate) async fn start_http(self: &Arc<Self>) -> Result<()> {
        let _one = self.http_start.lock().await;
        if self.dashboard().is_ok() {
            return Ok(());
        }
        let Some(link) = &self.events.link else {
            let message =
                "this daemon is a part of a program that starts it without HTTP: start it with an HTTP address";
            return Err(Error::new(ErrorKind::Refused, message));
        };
        let config = HttpConfig { listen: (Ipv4Addr::LOCALHOST, default_port()?).into(), ..HttpConfig::default() };
        let listener = TcpListener::bind(config.listen).or_else(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
            _ => Err(error),
        });
        let listener = listener.map_err(|error| Error::io("listening on loopback", &error))?;
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
