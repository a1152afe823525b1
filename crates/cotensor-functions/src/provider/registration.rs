//! The provider's connection to the daemon: it registers functions and receives the sockets of callers.

use super::callers::Callers;
use super::functions::Function;
use super::state::ProviderState;
use cotensor_client::protocol as p;
use cotensor_client::{ClientStore, OpenSession};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{Connection, OnNotification};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The time limit of requests to the daemon.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts to connect to the next daemon.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Connects to a daemon, or starts one.
pub(super) type Connector = Box<dyn Fn() -> Result<Arc<ClientStore>> + Send + Sync>;

/// Opens a session and registers all functions. It resumes the last session, although no state of it is left: a daemon
/// that replaced another waits until every session of its predecessor is resumed or ended.
pub(super) fn connect(callers: &Arc<Callers>) -> Result<Arc<Connection>> {
    let (connection, provider) = (open_session(callers)?, &callers.state);
    for function in provider.functions.all() {
        register(provider, &connection, function.info())?;
    }
    *lock(&provider.connection) = Some(Arc::clone(&connection));
    Ok(connection)
}

fn open_session(callers: &Arc<Callers>) -> Result<Arc<Connection>> {
    let provider = &callers.state;
    let store = provider.store();
    let weak = Arc::downgrade(callers);
    let on_notification: OnNotification = Box::new(move |method, params, fds: Vec<OwnedFd>| {
        let (Some(callers), p::notification::FUNCTION_CONNECT) = (weak.upgrade(), method) else { return };
        let caller = serde_json::from_str::<p::CallerInfo>(params.get());
        if let (Ok(caller), Some(fd)) = (caller, fds.into_iter().next()) {
            callers.add(&caller.client, UnixStream::from(fd));
        }
    });
    let connection = Arc::new(cotensor_client::connect(store.socket(), on_notification)?);
    let hello = |resume| {
        let hello = OpenSession::hello(store.client(), resume);
        connection.call::<p::Hello>(&hello, Vec::new(), Some(ANSWER_TIMEOUT))
    };
    let before = lock(&provider.session).as_ref().map(OpenSession::resume);
    let (greeted, mut fds) = match hello(before) {
        // The daemon does not know the last session.
        Err(error) if error.field() == Some(p::RESUME_TOKEN) => hello(None)?,
        greeted => greeted?,
    };
    let session = OpenSession::new(&greeted, &mut fds)?;
    let before = lock(&provider.session).replace(session);
    drop(before);
    Ok(connection)
}

/// Adds a function and registers it at the daemon.
pub(super) fn add(provider: &ProviderState, function: &Arc<Function>) -> Result<()> {
    let connection = provider.registration().ok_or_else(not_connected)?;
    provider.functions.add(function)?;
    let registered = register(provider, &connection, function.info());
    if registered.is_err() {
        provider.functions.remove(&function.name);
    }
    registered
}

/// Replaces a function of this provider.
pub(super) fn replace(provider: &ProviderState, function: &Arc<Function>) -> Result<()> {
    let connection = provider.registration().ok_or_else(not_connected)?;
    let before = provider.functions.replace(function)?;
    register(provider, &connection, function.info()).inspect_err(|_| drop(provider.functions.replace(&before)))
}

fn register(provider: &ProviderState, connection: &Connection, function: p::FunctionInfo) -> Result<()> {
    let (epoch, group, standby) = (provider.epoch, Some(provider.group.number()), provider.is_standby);
    let params = p::RegisterFunctionParams { function, epoch, group, standby };
    connection.call::<p::RegisterFunction>(&params, Vec::new(), Some(ANSWER_TIMEOUT)).map(drop)
}

/// Receives callers until the provider ends. Reconnects when the daemon ends; connected callers stay connected.
pub(super) fn keep(callers: &Arc<Callers>, mut connection: Arc<Connection>, connector: Option<Connector>) {
    let provider = &callers.state;
    loop {
        connection.listen();
        // The provider has ended, and closed the session.
        if lock(&provider.connection).take().is_none() {
            return;
        }
        connection = loop {
            if provider.is_closed() {
                return;
            }
            match reconnect(callers, connector.as_ref()) {
                Ok(connection) => break connection,
                Err(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        };
        // The provider has ended meanwhile, without closing this connection.
        if provider.is_closed() {
            return callers.close();
        }
    }
}

fn reconnect(callers: &Arc<Callers>, connector: Option<&Connector>) -> Result<Arc<Connection>> {
    match (connect(callers), connector) {
        (Err(error), Some(connector)) if error.kind() == ErrorKind::Unreachable => {
            callers.state.replace_store(connector()?);
            connect(callers)
        }
        (outcome, _) => outcome,
    }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Conflict, "no daemon runs; the provider reconnects when one starts, so try again later")
}
