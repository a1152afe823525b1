//! A server that a supervisor started: it takes over what the supervisor hands to it, and serves.

use crate::daemon::Daemon;
use crate::service::{self, Service};
use crate::transport::http::HttpListening;
use cotensor_core::Result;
use cotensor_memory::process::raise_fd_limit;
use cotensor_supervisor::{Launch, TakenOver};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs a server that a supervisor started, until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// `Invalid` when no supervisor started this process; `Io`.
pub(super) fn serve(service: Service, launch: Launch) -> Result<()> {
    raise_fd_limit();
    let TakenOver { link, mut sockets, index, watch } = TakenOver::receive(launch)?;
    let daemon = Daemon::take_over(service.config, index, Arc::clone(&link))?;
    let (watched, requests) = (Arc::downgrade(&daemon), AtomicU64::new(0));
    watch.start(move || {
        watched.upgrade().is_some_and(|daemon| {
            let now = daemon.models.requests();
            requests.swap(now, Ordering::Relaxed) != now || daemon.clients() > 0
        })
    })?;
    // Without a configuration, a client has turned HTTP on at a former server.
    let config = service.http.unwrap_or_default();
    let http =
        sockets.http.map(|listener| HttpListening::on(listener, config, sockets.listening.path())).transpose()?;
    // The end of the process frees its memory faster than destructors. The supervisor removes spilled files.
    std::mem::forget(Arc::clone(&daemon));
    service::serve(&daemon, &mut sockets.listening, http, || link.ready(daemon.epoch))
}
