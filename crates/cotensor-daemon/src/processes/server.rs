//! A server that a supervisor started: it takes over what the supervisor hands to it, and serves.

use crate::config::Config;
use crate::daemon::Daemon;
use crate::launch::Launch;
use crate::service::{self, Service};
use crate::state::index::INDEX_SLOTS;
use crate::supervisor::{
    CHANNEL_TIMEOUT, HandoverHeader, LinkState, Parent, Receiver, SUPERVISOR_CHECK_INTERVAL, Sockets, Supervisor,
    SupervisorLink, standard_input,
};
use crate::transport::http::HttpListening;
use cotensor_core::{Error, Result};
use cotensor_memory::SharedIndex;
use cotensor_memory::process::raise_fd_limit;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Runs a server that a supervisor started, until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// `Invalid` when no supervisor started this process; `Io`.
pub(super) fn serve(service: Service, launch: Launch) -> Result<()> {
    let (daemon, mut sockets, link) = take_over(service.config, launch)?;
    // Without a configuration, a client has turned HTTP on at a former server.
    let config = service.http.unwrap_or_default();
    let http =
        sockets.http.map(|listener| HttpListening::on(listener, config, sockets.listening.path())).transpose()?;
    // The end of the process frees its memory faster than destructors. The supervisor removes spilled files.
    std::mem::forget(Arc::clone(&daemon));
    service::serve(&daemon, &mut sockets.listening, http, || link.ready(daemon.epoch))
}

/// Takes over the state of the supervisor that started this process. Returns the daemon, its sockets and its link.
fn take_over(config: Config, launch: Launch) -> Result<(Arc<Daemon>, Sockets, Arc<SupervisorLink>)> {
    raise_fd_limit();
    let mut receiver = Receiver::new(standard_input()?);
    let handover = receiver.take_over()?;
    let socket = receiver.socket;
    let supervisor = Supervisor::Parent(Parent::at_the_other_end(&socket));
    let index = match handover.index {
        Some(fd) => SharedIndex::open(fd, handover.header.index_slots)?,
        None => SharedIndex::create(INDEX_SLOTS)?,
    };
    let io = |error| Error::io("taking over", &error);
    socket.set_write_timeout(Some(SUPERVISOR_CHECK_INTERVAL)).map_err(io)?;
    let header = HandoverHeader { server: Some(std::process::id()), index_slots: 0, ..handover.header };
    let sockets = handover.sockets.duplicate(&header)?;
    let link = Arc::new(SupervisorLink {
        orphaned: AtomicBool::new(header.orphaned),
        header,
        launch,
        stopping: AtomicBool::new(false),
        state: Mutex::new(LinkState {
            sockets,
            next: handover.journal.segments().map(|segment| segment.info.id).max().unwrap_or(0),
            journal: handover.journal,
            socket: Some(socket.try_clone().map_err(io)?),
            supervisor: supervisor.pid(),
            timeout: CHANNEL_TIMEOUT,
            numbers: HashMap::new(),
        }),
    });
    let daemon = Daemon::take_over(config, index, Arc::clone(&link))?;
    let (watching, watched) = (Arc::clone(&link), Arc::downgrade(&daemon));
    let requests = AtomicU64::new(0);
    let is_used = move || {
        watched.upgrade().is_some_and(|daemon| {
            let now = daemon.models.requests();
            requests.swap(now, Ordering::Relaxed) != now || daemon.clients() > 0
        })
    };
    let watch = move || watching.watch(socket, supervisor, &is_used);
    drop(std::thread::Builder::new().name("supervisor".to_owned()).spawn(watch).map_err(io)?);
    Ok((daemon, handover.sockets, link))
}
