//! Running a daemon: as the process that a user or the system starts, as its server, or as a replacement supervisor.

use super::server;
use crate::descriptors;
use crate::launch::{Launch, Role};
use crate::listening::Listening;
use crate::service::{Ready, Service};
use crate::spill_files::{Files, folder_of};
use crate::supervisor::{
    Manager, Receiver, Server, Sockets, SuccessorSocket, SupervisorState, inherit, standard_input,
};
use crate::transport::http::{HttpConfig, HttpListening};
use cotensor_core::{ErrorKind, Result};
use cotensor_memory::process::{LockTable, ignore_sigxfsz, raise_fd_limit};
use std::net::TcpListener;
use std::path::PathBuf;

/// Runs a daemon until SIGTERM, SIGINT or SIGHUP, here or at its server. SIGHUP is ignored where the caller ignores it.
/// Blocks. A program calls it at its start and does nothing else, also when it is started with [`Role::FLAG`].
///
/// Calls `ready` in the foreground process when the first server serves. The sockets and all tensors are removed at the
/// end.
///
/// # Errors
/// `Conflict` while another daemon is running. If its first supervisor was killed, this one takes its tensors over
/// instead. `Refused` or `Invalid` for a folder or a token file that will not do; `Unsupported` for a limit of
/// descriptors that is too low; `Io` for what the system refuses, and when no server could be started for a minute and
/// there are no tensors.
pub fn run(role: Role, service: Service, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    run_as(Launch::this_program()?, role, service, ready)
}

/// As [`run`], in a program that is started again by `launch`.
///
/// # Errors
/// Those of [`run`].
pub fn run_as(launch: Launch, role: Role, service: Service, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    // A file that exceeds the size limit, such as a spilled tensor, is an error and does not end the process.
    ignore_sigxfsz();
    match role {
        Role::Foreground => foreground(&service, &launch, ready),
        Role::Server => server::serve(service, launch),
        Role::Supervisor => resume(&service, &launch),
    }
}

fn foreground(service: &Service, launch: &Launch, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    let config = &service.config;
    // Before a takeover, which a limit that is too low would lose.
    raise_fd_limit();
    descriptors::check_limit()?;
    let (mut manager, held) = Manager::find()?;
    let activated = manager.as_mut().and_then(|manager| manager.activated.take());
    let is_activated = activated.is_some();
    let http = manager.as_mut().and_then(|manager| manager.activated_http.take());
    let (mut state, prepared) = match (held.filter(|held| held.header.socket == config.socket), activated) {
        (Some(mut held), _) => {
            held.sockets.http = held.sockets.http.take().or(http);
            let prepared = prepare(&mut held.sockets, service)?;
            (SupervisorState::from_manager(held, manager.as_ref())?, prepared)
        }
        (None, Some(listener)) => with_sockets(Listening::activated(listener, &config.socket)?, http, service)?,
        (None, None) => new_or_taken_over(service)?,
    };
    if is_activated {
        state.sockets.listening.leave_file();
    }
    let Prepared { http, spill } = prepared;
    state.spill = spill;
    if let Some(manager) = manager {
        state.store_at(manager)?;
    }
    let resumed = state.tensors();
    let mut ready = Some(ready);
    let on_ready = |epoch, server| {
        if let Some(ready) = ready.take() {
            let (http, token_file) = http.clone().unzip();
            ready(Ready { config, epoch, http, token_file, server, resumed });
        }
    };
    state.run_servers(launch, None, None, on_ready)
}

/// The state of a new daemon, or of one whose first supervisor was killed.
fn new_or_taken_over(service: &Service) -> Result<(SupervisorState, Prepared)> {
    let socket = &service.config.socket;
    match Listening::bind(socket) {
        Ok(listening) => with_sockets(listening, None, service),
        Err(refused) if refused.kind() == ErrorKind::Conflict => {
            let taken = inherit(socket, |sockets| prepare(sockets, service))?;
            taken.map(|(handover, prepared)| (SupervisorState::from_handover(handover), prepared)).ok_or(refused)
        }
        Err(error) => Err(error),
    }
}

/// The state of a new daemon. `http` is the socket for HTTP that a service manager has made.
fn with_sockets(
    listening: Listening,
    http: Option<TcpListener>,
    service: &Service,
) -> Result<(SupervisorState, Prepared)> {
    let mut state = SupervisorState::new(Sockets { listening, locks: LockTable::create()?, http })?;
    let prepared = prepare(&mut state.sockets, service)?;
    Ok((state, prepared))
}

/// The address of the HTTP server and the path of its token file.
type Address = (std::net::SocketAddr, PathBuf);

/// The resources of a daemon that a takeover does not bring.
struct Prepared {
    http: Option<Address>,
    /// The folder of spilled tensors.
    spill: Option<PathBuf>,
}

/// Checks the arguments before a takeover, so that a mistake in them loses no tensors.
///
/// # Errors
/// `Refused` or `Invalid` for a folder or a token file that will not do; `Io` for an address that is in use.
fn prepare(sockets: &mut Sockets, service: &Service) -> Result<Prepared> {
    let Service { config, http } = service;
    let spill = config.spill.as_deref();
    if let Some(folder) = spill {
        // Each server opens it. Opening it here reports errors at once.
        drop(Files::open(folder, &config.socket, config.max_spill_bytes)?);
    }
    let spill = spill.map(|folder| folder_of(folder, &config.socket)).transpose()?;
    Ok(Prepared { http: with_http(sockets, http.as_ref())?, spill })
}

/// Listens for HTTP if `wanted`, on the socket of the former daemon if it has the same address.
fn with_http(sockets: &mut Sockets, wanted: Option<&HttpConfig>) -> Result<Option<Address>> {
    let inherited = sockets.http.take();
    let Some(config) = wanted else {
        if inherited.is_some() {
            tracing::warn!("the socket for HTTP is not used: the setting `listen` is not set");
        }
        return Ok(None);
    };
    let same = |listener: &TcpListener| {
        listener.local_addr().is_ok_and(|at| {
            at.ip() == config.listen.ip() && (config.listen.port() == 0 || at.port() == config.listen.port())
        })
    };
    let socket = sockets.listening.path();
    let (inherited, other) =
        inherited.map_or((None, None), |found| if same(&found) { (Some(found), None) } else { (None, Some(found)) });
    if let Some(other) = other.and_then(|other| other.local_addr().ok()) {
        let listen = config.listen;
        tracing::warn!(
            "HTTP is served on {listen}, not on {other} as before; `cotensor service install` changes systemd's socket"
        );
    }
    let listening = match inherited {
        Some(listener) => HttpListening::on(listener, config.clone(), socket)?,
        None => HttpListening::bind(config.clone(), socket)?,
    };
    let address = (listening.address(), listening.token_file().to_path_buf());
    sockets.http = Some(listening.into_listener());
    Ok(Some(address))
}

/// Replaces a supervisor that died. The server that started this process hands the state over on standard input.
fn resume(service: &Service, launch: &Launch) -> Result<()> {
    let mut receiver = Receiver::new(standard_input()?);
    let handover = receiver.take_over()?;
    let server = Server { child: None, pid: handover.header.server };
    let successors = SuccessorSocket::wait(&service.config.socket)?;
    let mut state = SupervisorState::from_handover(handover);
    let spill = service.config.spill.as_deref();
    state.spill = spill.map(|folder| folder_of(folder, &service.config.socket)).transpose()?;
    state.run_servers(launch, Some((server, receiver)), Some(successors), |_, _| {})
}
