use super::arguments::{Arguments, Tensors};
use super::results::{Results, Slabs};
use crate::state::functions::FunctionProvider;
use crate::state::functions::slots::{self, Slots};
use crate::state::segment::RoomFor;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{CallerInfo, FoundFunction, Method};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind};
use cotensor_rpc::{Connection, millis, to_object};
use cotensor_store::{Holder, LocalStore};
use jsonrpsee_types::ErrorObjectOwned;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The longest time of a call.
const TIME_MAX: Duration = Duration::from_secs(660);

/// A call of a function for a client.
pub(crate) struct FunctionCall {
    pub(crate) store: Arc<LocalStore>,
    /// The holder of its tensors.
    pub(crate) holder: Holder,
    pub(crate) room_for: RoomFor,
    /// The client's name.
    pub(crate) client: String,
    pub(crate) function: FoundFunction,
    pub(crate) provider: Arc<dyn FunctionProvider>,
    /// The slots of all calls.
    pub(crate) slots: Slots,
}

/// The parameters of a call as [`p::CallParams`], with arguments that are text.
#[derive(Serialize)]
struct CallText<'a> {
    function: &'a str,
    args: Box<RawValue>,
    kwargs: Box<RawValue>,
    timeout_ms: u64,
}

impl FunctionCall {
    /// Calls the function over a connection of its own to the provider. Dropping the future ends the connection, and the
    /// provider cancels the run.
    ///
    /// # Errors
    /// The function's failure, with code -32050; errors of the arguments and of the daemon; `Conflict` when too many calls
    /// run for a long time.
    pub(crate) async fn run(self, params: Option<Box<RawValue>>) -> Result<Value, ErrorObjectOwned> {
        let (name, client) = (self.function.function.name.clone(), self.function.provider.client.clone());
        let ended = move || to_object(&ended(&name, &client));
        let running = slots::take(self.provider.slots(), &self.slots, self.provider.client()).await;
        let running = running.map_err(|error| to_object(&error))?;
        let (ours, theirs) =
            UnixStream::pair().map_err(|error| to_object(&Error::io("connecting with the provider", &error)))?;
        let slabs = Arc::new(Mutex::new(Slabs::default()));
        let connection = Arc::new(self.connection(ours, Arc::clone(&slabs)));
        let _end = Ends(Arc::downgrade(&connection));
        // On one thread that may block until its end: a provider may send descriptors whose closing blocks.
        let call = move || {
            let outcome = self.call(params, &connection, theirs, &slabs);
            drop((connection, slabs, running));
            outcome
        };
        tokio::task::spawn_blocking(call).await.unwrap_or_else(|_| Err(ended()))
    }

    fn call(
        &self,
        params: Option<Box<RawValue>>,
        connection: &Connection,
        theirs: UnixStream,
        slabs: &Mutex<Slabs>,
    ) -> Result<Value, ErrorObjectOwned> {
        let FoundFunction { function, provider } = &self.function;
        let tensors = Tensors { store: &self.store, holder: &self.holder, room_for: self.room_for };
        let arguments = Arguments::read(params.as_deref(), &function.name, tensors);
        let Arguments { args, kwargs, leases: _until_answered } = arguments.map_err(|error| to_object(&error))?;
        drop(params);
        let caller = CallerInfo { client: self.client.clone() };
        if !self.provider.connect(&caller, theirs.into()) {
            return Err(to_object(&ended(&function.name, &provider.client)));
        }
        let params = CallText { function: &function.name, args, kwargs, timeout_ms: millis(TIME_MAX) };
        let answered = connection.request_raw(p::Call::NAME, params, TIME_MAX);
        let (response, _) = answered.map_err(|error| to_object(&self.lost(&error)))?;
        if let Some(error) = response.error() {
            return Err(error.clone());
        }
        let read = || {
            let value = response.outcome()?;
            let wrong = |error: serde_json::Error| Error::corrupt(format!("the provider's answer: {error}"));
            let p::CallResult { value, taken, .. } = serde_json::from_str(value.get()).map_err(wrong)?;
            let result = Results::new(&self.store, &self.holder, &lock(slabs)).read(value);
            if let Some(taken) = taken {
                // A provider that has ended holds no leases.
                let _ = connection.notify::<p::Taken>(&p::TakenParams { taken });
            }
            result
        };
        read().map_err(|error| to_object(&error))
    }

    fn connection(&self, socket: UnixStream, slabs: Arc<Mutex<Slabs>>) -> Connection {
        let on_notification = Box::new(move |method: &str, params: &RawValue, fds: Vec<OwnedFd>| {
            if method == p::OpenSlab::NAME
                && let Ok(opened) = serde_json::from_str::<p::OpenSlabParams>(params.get())
                && let Some(fd) = fds.into_iter().next()
            {
                lock(&slabs).add(opened, fd);
            }
        });
        Connection::over(socket, on_notification).with_peer_name(self.provider.client())
    }

    /// The error of a connection that ended before the answer.
    fn lost(&self, error: &Error) -> Error {
        let kind = if error.kind() == ErrorKind::TimedOut { ErrorKind::TimedOut } else { ErrorKind::Io };
        let (function, client) = (&self.function.function.name, self.provider.client());
        let message = format!("{function}: the provider {client} gave no answer ({})", error.message());
        Error::new(kind, message)
    }
}

fn ended(name: &str, provider: &str) -> Error {
    Error::not_found(format!("function {name:?} not found: its provider {provider} has ended")).in_field("method")
}

/// Ends the connection of a call whose client has gone.
struct Ends(Weak<Connection>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.close();
        }
    }
}
