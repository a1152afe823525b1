//! The daemon may die: a keeper, which does next to nothing and therefore lives on, holds the listening sockets, every
//! published segment's descriptor and what there is to know about it, and starts the next server with them.
//!
//! ```text
//! keeper --- socket pair (the server's standard input) --- server --- clients
//! ```
//!
//! The server tells of every change before anybody else can know of it; what it has sent arrives even if it dies right
//! after. When it dies, the keeper ends the index, so that no client goes on answering itself from it, and starts the next
//! one, which verifies every seal and size. Clients meanwhile wait in the listening socket's queue. When the keeper
//! dies, the server starts a new one and tells it everything; whoever starts the program again inherits it all. Only both
//! at the same time lose what there is, unless systemd holds it, too (`systemd.rs`).

mod channel;
mod estate;
mod heir;
mod ledger;
mod packed;
mod process;
mod server;
mod systemd;

pub(crate) use cotensor_memory::process::state as process_state;
pub use process::Launch;

pub(crate) use ledger::{Change, Entry, Ledger, Member, Segment};
pub(crate) use server::Kept;

use crate::http::HttpListening;
use crate::index::INDEX_SLOTS;
use crate::spill::{Files, folder_of};
use crate::{Listening, Ready, Service};
use channel::{Receiver, Sockets};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::ignore_sigxfsz;
use estate::Estate;
use process::Server;
use std::net::TcpListener;
use std::path::PathBuf;
use std::str::FromStr;

/// What a process of the daemon is to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The one that somebody started: it keeps, and runs servers until it is asked to stop.
    #[default]
    Foreground,
    /// Started by a keeper: it serves.
    Server,
    /// Started by a server whose keeper died.
    Keeper,
}

impl Role {
    /// The argument that names the role: [`run`] starts this program again with the same arguments, and this one with
    /// its value at their end.
    pub const FLAG: &'static str = "--role";

    fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Server => "server",
            Self::Keeper => "keeper",
        }
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let roles = [Self::Foreground, Self::Server, Self::Keeper];
        let unknown = || Error::invalid(format!("{name:?} is no role: this argument is for the daemon itself"));
        roles.into_iter().find(|role| role.name() == name).ok_or_else(unknown)
    }
}

/// Runs a daemon until SIGTERM, SIGINT or SIGHUP, here or at its server. SIGHUP is ignored where the caller ignores it. Blocks; to be called from the start of a program that does
/// nothing else, and that calls it again when it is started with [`Role::FLAG`].
///
/// `ready` is called in the foreground once clients are served, the first time. The sockets and all tensors are gone
/// afterwards.
///
/// # Errors
/// `Conflict` while another daemon lives, unless nobody answers for that any more: then its tensors are inherited.
/// `Refused` or `Invalid` for a folder or a token file that will not do; `Io` for what the system refuses, and when no server
/// could be started for a minute.
pub fn run(role: Role, service: Service, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    run_as(Launch::this_program()?, role, service, ready)
}

/// As [`run`], in a program that is started again by `launch`.
///
/// # Errors
/// Those of [`run`].
pub fn run_as(launch: Launch, role: Role, service: Service, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    // Writing a file that grows too long, such as a spilled tensor, is an error, and not the end.
    ignore_sigxfsz();
    match role {
        Role::Foreground => foreground(&service, &launch, ready),
        Role::Server => server::serve(service, launch),
        Role::Keeper => resume(&service, &launch),
    }
}

fn foreground(service: &Service, launch: &Launch, ready: impl FnOnce(Ready<'_>)) -> Result<()> {
    let config = &service.config;
    let (manager, held) = systemd::Manager::find()?;
    let (mut estate, prepared) = match held.filter(|held| held.birth.socket == config.socket) {
        Some(mut held) => {
            let prepared = prepare(&mut held.sockets, service)?;
            (Estate::held(held, manager.as_ref())?, prepared)
        }
        None => first_or_heir(service)?,
    };
    let Prepared { http, spill } = prepared;
    estate.spill = spill;
    if let Some(manager) = manager {
        estate.hold_with(manager)?;
    }
    let resumed = estate.tensors();
    let mut ready = Some(ready);
    let told = |epoch, server| {
        if let Some(ready) = ready.take() {
            let (http, token_file) = http.clone().unzip();
            ready(Ready { config, epoch, http, token_file, server, resumed });
        }
    };
    estate.keep(launch, None, None, told)
}

/// Nothing, on a socket of its own, or what a daemon has that nobody answers for.
fn first_or_heir(service: &Service) -> Result<(Estate, Prepared)> {
    let socket = &service.config.socket;
    match Listening::bind(socket) {
        Ok(listening) => {
            let mut estate = Estate::new(Sockets { listening, http: None })?;
            let prepared = prepare(&mut estate.sockets, service)?;
            Ok((estate, prepared))
        }
        Err(refused) if refused.kind() == ErrorKind::Conflict => {
            heir::inherit(socket, |sockets| prepare(sockets, service))?.ok_or(refused)
        }
        Err(error) => Err(error),
    }
}

/// Where HTTP is answered, and the file of the token.
type Address = (std::net::SocketAddr, PathBuf);

/// What a daemon needs beside what it inherits.
struct Prepared {
    http: Option<Address>,
    /// Where servers spill, if they do.
    spill: Option<PathBuf>,
}

/// Looks at all that may be refused, before what another has is taken from it: a mistake in the arguments costs no tensors.
///
/// # Errors
/// `Refused` or `Invalid` for a folder or a token file that will not do; `Io` for an address that is in use.
fn prepare(sockets: &mut Sockets, service: &Service) -> Result<Prepared> {
    let Service { config, http } = service;
    let spill = config.spill.as_deref();
    if let Some(folder) = spill {
        // Opened by every server, and here so that what is wrong with it is told at once.
        drop(Files::open(folder, &config.socket, config.max_spill_bytes)?);
    }
    let spill = spill.map(|folder| folder_of(folder, &config.socket)).transpose()?;
    Ok(Prepared { http: with_http(sockets, http.as_ref())?, spill })
}

/// Listens for HTTP where that is wanted, on the socket that is there already if it is the same.
fn with_http(sockets: &mut Sockets, wanted: Option<&crate::http::HttpConfig>) -> Result<Option<Address>> {
    let inherited = sockets.http.take();
    let Some(config) = wanted else { return Ok(None) };
    let same = |listener: &TcpListener| {
        listener.local_addr().is_ok_and(|at| {
            at.ip() == config.listen.ip() && (config.listen.port() == 0 || at.port() == config.listen.port())
        })
    };
    let socket = sockets.listening.path();
    let listening = match inherited.filter(same) {
        Some(listener) => HttpListening::on(listener, config.clone(), socket)?,
        None => HttpListening::bind(config.clone(), socket)?,
    };
    let address = (listening.address(), listening.token_file().to_path_buf());
    sockets.http = Some(listening.into_listener());
    Ok(Some(address))
}

/// Goes on for a keeper that died: the server that started this process hands everything over on standard input.
fn resume(service: &Service, launch: &Launch) -> Result<()> {
    let mut receiver = Receiver::new(process::standard_input()?);
    let handover = receiver.take_over()?;
    let server = Server { child: None, pid: handover.birth.server };
    let heirs = heir::Heirs::wait(&service.config.socket)?;
    let mut estate = Estate::of(handover);
    let spill = service.config.spill.as_deref();
    estate.spill = spill.map(|folder| folder_of(folder, &service.config.socket)).transpose()?;
    estate.keep(launch, Some((server, receiver)), Some(heirs), |_, _| {})
}
