//! The provider's connection to the daemon: what it offers, and who wants to call.

use super::functions::Function;
use super::shared::Shared;
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{Connection, OnNotification};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long the daemon may take.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two attempts to find the daemon again.
const RETRY: Duration = Duration::from_millis(100);

/// Gets a store, of a daemon that listens.
pub(super) type Connector = Box<dyn Fn() -> Result<Arc<ClientStore>> + Send + Sync>;

/// A session of the provider's own, in which it offers all its functions. It takes up the one before, though nothing is left of
/// that: a daemon that replaced another waits for every session that there was, and is to know that this one is back.
pub(super) fn connect(shared: &Arc<Shared>) -> Result<Arc<Connection>> {
    let connection = greet(shared)?;
    for function in shared.functions.all() {
        register(shared, &connection, function.info())?;
    }
    *lock(&shared.connection) = Some(Arc::clone(&connection));
    Ok(connection)
}

fn greet(shared: &Arc<Shared>) -> Result<Arc<Connection>> {
    let store = shared.store();
    let weak = Arc::downgrade(shared);
    let on_notification: OnNotification = Box::new(move |method, params, fds: Vec<OwnedFd>| {
        let (Some(shared), p::notification::FUNCTION_CONNECT) = (weak.upgrade(), method) else { return };
        let caller = serde_json::from_str::<p::CallerInfo>(params.get());
        if let (Ok(caller), Some(fd)) = (caller, fds.into_iter().next()) {
            shared.welcome(&caller.client, UnixStream::from(fd));
        }
    });
    let connection = Arc::new(cotensor_client::connect(store.socket(), on_notification)?);
    let hello = |resume| {
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: store.client().to_owned(), resume };
        connection.call::<p::Hello>(&hello, Vec::new(), Some(ANSWER_TIMEOUT))
    };
    let before = lock(&shared.session).clone();
    let (greeted, _) = match hello(before) {
        // A daemon that knows nothing of the former one.
        Err(error) if error.field() == Some(p::RESUME_TOKEN) => hello(None)?,
        greeted => greeted?,
    };
    let (session, token) = (greeted.session, greeted.token);
    *lock(&shared.session) = Some(p::Resume { session, token, leases: Vec::new(), claims: Vec::new() });
    Ok(connection)
}

/// Registers a function here and at the daemon.
pub(super) fn add(shared: &Shared, function: &Arc<Function>) -> Result<()> {
    let connection = shared.registration().ok_or_else(not_connected)?;
    shared.functions.add(function)?;
    let registered = register(shared, &connection, function.info());
    if registered.is_err() {
        shared.functions.remove(&function.name);
    }
    registered
}

fn register(shared: &Shared, connection: &Connection, function: p::FunctionInfo) -> Result<()> {
    let params = p::RegisterFunctionParams { function, epoch: shared.epoch };
    connection.call::<p::RegisterFunction>(&params, Vec::new(), Some(ANSWER_TIMEOUT)).map(drop)
}

/// Listens, and finds the next daemon when one is gone, until the provider ends. Callers that are connected stay so.
pub(super) fn keep(shared: &Arc<Shared>, mut connection: Arc<Connection>, connector: Option<Connector>) {
    loop {
        connection.listen();
        // Taken already by whoever ended the provider, and with it the session.
        if lock(&shared.connection).take().is_none() {
            return;
        }
        connection = loop {
            if shared.is_closed() {
                // Else the next daemon would wait for it as long as this process lives.
                return drop(greet(shared));
            }
            match again(shared, connector.as_ref()) {
                Ok(connection) => break connection,
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        // Closed in between: nobody has told this connection.
        if shared.is_closed() {
            return connection.close();
        }
    }
}

fn again(shared: &Arc<Shared>, connector: Option<&Connector>) -> Result<Arc<Connection>> {
    match (connect(shared), connector) {
        (Err(error), Some(connector)) if error.kind() == ErrorKind::Unreachable => {
            shared.replace_store(connector()?);
            connect(shared)
        }
        (outcome, _) => outcome,
    }
}

/// A function that could not be offered, as the daemon's error.
fn not_connected() -> Error {
    Error::new(ErrorKind::Conflict, "no daemon is there now; the provider looks for it")
}
