//! The connection to the daemon.

use crate::args::Client;
use crate::launch::Program;
use cotensor::core::{ErrorKind, Result};
use cotensor_client::ClientStore;
use std::path::Path;
use std::sync::Arc;

/// Connects to the daemon as a client called `name`; starts this program as daemon when none answers.
pub(super) fn connect(client: &Client, program: &Program, name: &str) -> Result<Arc<ClientStore>> {
    let socket = client.socket.as_deref();
    if client.autostart { connect_at(socket, program, name) } else { ClientStore::connect(socket, name) }
}

/// As [`connect`], at a socket and with a start in any case.
pub(super) fn connect_at(socket: Option<&Path>, program: &Program, name: &str) -> Result<Arc<ClientStore>> {
    let builder = ClientStore::builder(name).start(program.as_daemon()?);
    socket.into_iter().fold(builder, |builder, socket| builder.socket(socket)).connect()
}

/// The daemon at `socket` as a client called `client`; none if none runs.
pub(super) fn running(socket: &Path, client: &str) -> Result<Option<Arc<ClientStore>>> {
    match ClientStore::connect(Some(socket), client) {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind() == ErrorKind::Unreachable => Ok(None),
        Err(error) => Err(error),
    }
}
