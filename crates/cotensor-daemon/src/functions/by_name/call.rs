use super::arguments::Arguments;
use super::results::{Results, Slabs};
use crate::functions::FunctionProvider;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{CallerInfo, FoundFunction, Method};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{Connection, millis, to_object};
use cotensor_store::{EmbeddedStore, Holder};
use jsonrpsee_types::ErrorObjectOwned;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The calls that run at a time; each occupies a thread. Further calls wait.
static RUNNING: Semaphore = Semaphore::const_new(64);
/// The longest time of a call. The client's own limit ends it before.
const TIME_MAX: Duration = Duration::from_secs(660);

/// A call of a function for a client.
pub(crate) struct FunctionCall {
    pub(crate) store: Arc<EmbeddedStore>,
    /// The holder of its tensors.
    pub(crate) holder: Holder,
    /// The client's name.
    pub(crate) client: String,
    pub(crate) function: FoundFunction,
    pub(crate) provider: Arc<dyn FunctionProvider>,
}

impl FunctionCall {
    /// Calls the function over a connection of its own to the provider. Dropping the future ends the connection, and the
    /// provider cancels the run.
    ///
    /// # Errors
    /// The function's failure, with code -32050; errors of the arguments and of the daemon.
    pub(crate) async fn run(self, params: Option<Value>) -> Result<Value, ErrorObjectOwned> {
        let Ok(_running) = RUNNING.acquire().await else { return Err(to_object(&ended(&self.function))) };
        let arguments = Arguments::read(params, &self.function.function.name, &self.store, &self.holder)
            .map_err(|error| to_object(&error))?;
        let slabs = Arc::new(Mutex::new(Slabs::default()));
        let connection = Ends(Arc::new(self.connect(Arc::clone(&slabs)).map_err(|error| to_object(&error))?));
        let params = p::CallParams {
            function: self.function.function.name.clone(),
            args: arguments.args,
            kwargs: arguments.kwargs,
            timeout_ms: Some(millis(TIME_MAX)),
            released: Vec::new(),
        };
        let calling = Arc::clone(&connection.0);
        let request = move || calling.request::<p::Call>(&params, Vec::new(), Some(TIME_MAX));
        let joined = tokio::task::spawn_blocking(request).await;
        let answered = joined.unwrap_or_else(|_| Err(ended(&self.function)));
        let (response, _) = answered.map_err(|error| to_object(&self.lost(&error)))?;
        if let Some(error) = response.error() {
            return Err(error.clone());
        }
        let read = || {
            let value = response.outcome()?;
            let wrong = |error: serde_json::Error| Error::corrupt(format!("the provider's answer: {error}"));
            let p::CallResult { value, taken, .. } = serde_json::from_str(value.get()).map_err(wrong)?;
            let result = Results::new(&self.store, &self.holder, &lock(&slabs)).read(value);
            if let Some(taken) = taken {
                // A provider that has ended holds no leases.
                drop(connection.0.notify::<p::Taken>(&p::TakenParams { taken }));
            }
            result
        };
        read().map_err(|error| to_object(&error))
    }

    fn connect(&self, slabs: Arc<Mutex<Slabs>>) -> Result<Connection> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("connecting with the provider", &error))?;
        let caller = CallerInfo { client: self.client.clone() };
        if !self.provider.connect(&caller, theirs.into()) {
            return Err(ended(&self.function));
        }
        let on_notification = Box::new(move |method: &str, params: &serde_json::value::RawValue, fds: Vec<OwnedFd>| {
            if method == p::OpenSlab::NAME
                && let Ok(opened) = serde_json::from_str::<p::OpenSlabParams>(params.get())
                && let Some(fd) = fds.into_iter().next()
            {
                lock(&slabs).add(opened, fd);
            }
        });
        Ok(Connection::over(ours, on_notification).with_peer_name(self.provider.client()))
    }

    /// The error of a connection that ended before the answer.
    fn lost(&self, error: &Error) -> Error {
        let kind = if error.kind() == ErrorKind::TimedOut { ErrorKind::TimedOut } else { ErrorKind::Io };
        let message = format!("the provider {} gave no answer ({})", self.provider.client(), error.message());
        Error::new(kind, message).in_field(self.function.function.name.as_str())
    }
}

fn ended(function: &FoundFunction) -> Error {
    let (name, provider) = (&function.function.name, &function.provider.client);
    Error::not_found(format!("function {name:?} not found: its provider {provider} has ended")).in_field("method")
}

/// A connection that ends when this is dropped.
struct Ends(Arc<Connection>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.close();
    }
}
