//! The socket to one provider.

use super::RemoteObject;
use crate::connection::{Answer, Asked, Connection, Group};
use crate::functions::codec::{self, Edge, Encoded, Handed};
use crate::functions::lending::{Lending, Speak};
use crate::functions::{Arguments, CallError, Outlet, Value};
use crate::protocol::provider as p;
use crate::protocol::{Method, ProviderInfo};
use crate::store::ClientStore;
use crate::wire::Frame;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::{Holder, Store};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long to look for a result before sleeping: falling asleep and being woken takes longer than a small function.
const SPIN: Duration = Duration::from_millis(1);
/// The provider keeps time limits; one that says nothing for this much longer is taken for dead.
const GRACE: Duration = Duration::from_secs(30);

pub(crate) struct Link {
    connection: Arc<Connection>,
    lending: Arc<Lending>,
    epoch: u64,
    client: String,
    store: Arc<ClientStore>,
    holder: Holder,
}

impl Link {
    pub(super) fn new(socket: UnixStream, provider: &ProviderInfo, store: Arc<ClientStore>) -> Arc<Self> {
        let lending = Arc::new(Lending::with_a_reader());
        let hears = Arc::clone(&lending);
        let connection =
            Connection::over(socket, Box::new(move |method, params, fds| hears.hear_notice(method, params.get(), fds)));
        let connection = Arc::new(connection.looking_for(SPIN));
        let speaker: Arc<dyn Speak> = Arc::clone(&connection) as _;
        lending.speak_through(Arc::downgrade(&speaker));
        let holder = store.holder("functions");
        Arc::new(Self { connection, lending, epoch: provider.epoch, client: provider.client.clone(), store, holder })
    }

    /// Where to write tensors of arguments.
    pub(super) fn outlet(&self) -> Outlet {
        Outlet::new(Arc::clone(&self.store), Some(Arc::clone(&self.lending)))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.has_ended()
    }

    pub(super) fn disconnect(&self) {
        self.connection.close();
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The provider's name and process, for people.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    /// Asks what is answered at once.
    pub(super) fn ask<M: Method>(&self, params: &M::Params) -> Result<M::Result, CallError> {
        self.ask_within::<M>(params, Some(Duration::ZERO))
    }

    /// Asks what is answered within `timeout`, or as long as the provider lives.
    pub(super) fn ask_within<M: Method>(
        &self,
        params: &M::Params,
        timeout: Option<Duration>,
    ) -> Result<M::Result, CallError> {
        let timeout = timeout.map(|timeout| timeout.saturating_add(GRACE));
        let asked = self.connection.ask::<M>(params, Vec::new(), timeout);
        let answer = asked.and_then(Asked::wait).map_err(|error| self.silent::<M>(error))?;
        Self::hear::<M>(answer)
    }

    /// As [`ask_within`](Self::ask_within), for as long as `wanted` says so. An answer that comes after that is taken all the
    /// same, by `late` on a thread of its own.
    pub(super) fn ask_while<M: Method>(
        self: &Arc<Self>,
        params: &M::Params,
        timeout: Option<Duration>,
        wanted: &dyn Fn() -> bool,
        late: impl FnOnce(&Arc<Self>, M::Result) + Send + 'static,
    ) -> Result<M::Result, CallError> {
        let timeout = timeout.map(|timeout| timeout.saturating_add(GRACE));
        let asked = self.connection.ask::<M>(params, Vec::new(), timeout);
        match asked.and_then(|asked| asked.wait_while(wanted)).map_err(|error| self.silent::<M>(error))? {
            Ok(answer) => Self::hear::<M>(answer),
            Err(number) => {
                let link = Arc::clone(self);
                let take = move || {
                    let answer = link.connection.resume(number).wait().map_err(CallError::from);
                    if let Ok(result) = answer.and_then(Self::hear::<M>) {
                        late(&link, result);
                    }
                };
                drop(std::thread::Builder::new().name("cotensor-late".to_owned()).spawn(take));
                Err(Error::new(ErrorKind::Conflict, "nobody waits for it any more").in_field(M::NAME).into())
            }
        }
    }

    /// What the other end says comes as an answer: this is that it says nothing any more.
    fn silent<M: Method>(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Io | ErrorKind::TimedOut | ErrorKind::Corrupt => {
                let message = format!("{}, which provides it, is gone ({})", self.client, error.message());
                Error::new(ErrorKind::Io, message).in_field(M::NAME)
            }
            _ => error,
        }
    }

    /// Asks without waiting: the answer goes to `group`.
    pub(super) fn ask_into<M: Method>(&self, params: &M::Params, group: &Arc<Group>) -> Result<u64> {
        self.connection.ask_into::<M>(params, group).map_err(|error| self.silent::<M>(error))
    }

    /// What has arrived for `group`, once something has, while `wanted` says so.
    pub(super) fn wait_for(&self, group: &Group, wanted: &dyn Fn() -> bool) -> Result<Vec<(u64, Answer)>> {
        self.connection.wait_for(group, wanted).map_err(|error| self.silent::<p::Wait>(error))
    }

    pub(super) fn hear<M: Method>(Answer { response, .. }: Answer) -> Result<M::Result, CallError> {
        if let Some(error) = response.error() {
            return Err(CallError::from_object(error));
        }
        let value = response.outcome()?;
        let corrupt = |error: serde_json::Error| Error::corrupt(format!("the answer to {}: {error}", M::NAME));
        Ok(serde_json::from_str(value.get()).map_err(corrupt)?)
    }

    pub(super) fn call(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Value, CallError> {
        let (params, _handed) = self.params(name, arguments, timeout)?;
        let result = self.ask_within::<p::Call>(&params, timeout)?;
        self.open(result)
    }

    pub(super) fn call_while(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Value, CallError> {
        let (params, _handed) = self.params(name, arguments, timeout)?;
        self.open(self.ask_while::<p::Call>(&params, timeout, wanted, Self::let_go)?)
    }

    /// Takes a result that nobody waits for any more, so that its tensors are let go of.
    pub(super) fn let_go(self: &Arc<Self>, result: p::CallResult) {
        drop(self.open(result));
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<u64, CallError> {
        let (params, _handed) = self.params(name, arguments, timeout)?;
        Ok(self.ask::<p::Submit>(&params)?.task)
    }

    pub(super) fn params(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<(p::CallParams, Handed)> {
        let Encoded { args, kwargs, handed } = codec::encode_arguments(arguments, self)?;
        let (timeout_ms, returned) = (timeout.map(millis), self.lending.returned());
        Ok((p::CallParams { function: name.to_owned(), args, kwargs, timeout_ms, returned }, handed))
    }

    /// What was lent by the provider and is read no more, to be said.
    pub(super) fn returned(&self) -> Vec<p::LentRange> {
        self.lending.returned()
    }

    /// The value of a result; its tensors are leased to this process from here on.
    pub(super) fn open(self: &Arc<Self>, result: p::CallResult) -> Result<Value, CallError> {
        self.lending.take_back(&result.returned);
        let value = codec::decode(result.value, self);
        if let Some(taken) = result.taken {
            // A provider that is gone has let go already.
            self.tell::<p::Taken>(&p::TakenParams { taken });
        }
        Ok(value?)
    }

    pub(super) fn tell<M: Method>(&self, params: &M::Params) {
        drop(self.connection.notify::<M>(params));
    }
}

impl Speak for Connection {
    fn speak(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()> {
        self.send(Frame { body, fds })
    }

    fn end(&self) {
        self.close();
    }
}

/// A time limit as messages have it; less than a millisecond is one.
pub(super) fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Edge for Arc<Link> {
    fn store(&self) -> &ClientStore {
        &self.store
    }

    fn holder(&self) -> &Holder {
        &self.holder
    }

    fn lending(&self) -> &Arc<Lending> {
        &self.lending
    }

    fn refer(&self, object: &Value) -> Result<p::ObjectRef> {
        match object {
            Value::Remote(object) => object.reference_for(self),
            _ => Err(Error::unsupported("an object of this process: only a provider's results can be objects")),
        }
    }

    fn resolve(&self, object: p::ObjectRef) -> Result<Value> {
        Ok(Value::Remote(Arc::new(RemoteObject::new(Arc::clone(self), object))))
    }
}
