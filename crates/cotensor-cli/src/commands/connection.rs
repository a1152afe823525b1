//! The connection to the daemon.

use crate::args::Client;
use crate::watchdog::{self, Watchdog};
use cotensor::core::Result;
use cotensor_client::ClientStore;
use std::sync::Arc;

/// Connects to the daemon as a client called `name`. Reports on standard error when the daemon does not answer.
pub(super) fn connect(client: &Client, name: &str) -> Result<Arc<ClientStore>> {
    let watchdog = watch(client);
    let store = ClientStore::connect(client.socket.as_deref(), name)?;
    watchdog.keep();
    Ok(store)
}

pub(super) fn watch(client: &Client) -> Watchdog {
    watchdog::start(client.socket.clone().unwrap_or_else(cotensor_client::default_socket))
}
