//! Running a daemon: as the process that a user or the system starts, as its server, or as a replacement supervisor.

use super::server;
use crate::config::Config;
use crate::descriptors;
use crate::service::{Ready, Service};
use crate::spill_files::{Files, folder_of};
use crate::transport::http::{HttpConfig, HttpListening};
use cotensor_core::Result;
use cotensor_memory::process::{ignore_sigxfsz, raise_fd_limit};
use cotensor_supervisor::{Launch, Prepared, Role, Sockets, Supervisor};
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
        Role::Supervisor => Supervisor::replace(&service.config.socket, spill_folder(&service.config)?, &launch),
    }
}

fn foreground(service: &Service, launch: &Launch, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    let config = &service.config;
    // Before a takeover, which a limit that is too low would lose.
    raise_fd_limit();
    descriptors::check_limit()?;
    let (supervisor, http) = Supervisor::open(&config.socket, |sockets| prepare(sockets, service))?;
    let resumed = supervisor.tensors();
    let mut ready = Some(ready);
    supervisor.run(launch, |epoch, server| {
        if let Some(ready) = ready.take() {
            let (http, token_file) = http.clone().unzip();
            ready(Ready { config, epoch, http, token_file, server, resumed });
        }
    })
}

/// The address of the HTTP server and the path of its token file.
type Address = (std::net::SocketAddr, PathBuf);

/// Checks the arguments before a takeover, so that a mistake in them loses no tensors.
///
/// # Errors
/// `Refused` or `Invalid` for a folder or a token file that will not do; `Io` for an address that is in use.
fn prepare(sockets: &mut Sockets, service: &Service) -> Result<Prepared<Option<Address>>> {
    let Service { config, http } = service;
    if let Some(folder) = &config.spill {
        // Each server opens it. Opening it here reports errors at once.
        drop(Files::open(folder, &config.socket, config.max_spill_bytes)?);
    }
    Ok(Prepared { spill_folder: spill_folder(config)?, value: with_http(sockets, http.as_ref())? })
}

/// The daemon's folder of spilled tensors.
fn spill_folder(config: &Config) -> Result<Option<PathBuf>> {
    config.spill.as_deref().map(|folder| folder_of(folder, &config.socket)).transpose()
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
