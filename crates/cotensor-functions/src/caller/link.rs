//! The socket to one provider.

use super::RemoteObject;
use super::late::{Late, TakeLate};
use crate::codec::{self, Edge, Encoded, Handed};
use crate::lending::{Lending, Speak};
use crate::{Arguments, CallError, Failure, Outlet, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{Method, ProviderInfo};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use cotensor_rpc::TENSORS_INSTEAD;
use cotensor_rpc::{Answer, Connection, Group, Until, unwanted};
use cotensor_rpc::{Frame, check_integers};
use cotensor_store::{Holder, TensorStore};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long to look for a result before sleeping: falling asleep and being woken takes longer than a small function.
const SPIN: Duration = Duration::from_millis(1);
/// How long a provider may take for what it answers at once, unless the caller's calls have a shorter limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a message lends to the other end, and what it returns.
#[derive(Clone, Copy, Default)]
pub(super) struct Lent<'a> {
    pub(super) handed: Option<&'a Handed>,
    pub(super) returned: &'a [p::LentRange],
}

pub(crate) struct Link {
    pub(super) connection: Arc<Connection>,
    pub(super) late: Late,
    answer_timeout: Duration,
    lending: Arc<Lending>,
    epoch: u64,
    client: String,
    store: Arc<ClientStore>,
    holder: Holder,
}

impl Link {
    /// The link to `provider`, whose answers the caller waits for no longer than `timeout`.
    pub(super) fn new(
        socket: UnixStream,
        provider: &ProviderInfo,
        store: Arc<ClientStore>,
        timeout: Option<Duration>,
    ) -> Arc<Self> {
        let lending = Arc::new(Lending::with_a_reader());
        let hears = Arc::clone(&lending);
        let connection =
            Connection::over(socket, Box::new(move |method, params, fds| hears.hear_notice(method, params.get(), fds)));
        let connection = Arc::new(connection.named(&provider.client).looking_for(SPIN));
        let speaker: Arc<dyn Speak> = Arc::clone(&connection) as _;
        lending.speak_through(Arc::downgrade(&speaker));
        let holder = store.holder("functions");
        let (epoch, client) = (provider.epoch, provider.client.clone());
        let answer_timeout = timeout.map_or(ANSWER_TIMEOUT, |timeout| timeout.min(ANSWER_TIMEOUT));
        Arc::new(Self { connection, late: Late::default(), answer_timeout, lending, epoch, client, store, holder })
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
    pub(super) fn ask<M: Method>(self: &Arc<Self>, params: &M::Params) -> Result<M::Result, CallError> {
        self.ask_by::<M>(params, Lent::default(), &self.answer_timeout.into(), None, |_, _| {})
    }

    /// Asks what is answered before the deadline, and waits for it as long as `wanted` says so. An answer that comes after
    /// that is given to `late`. `lent` is what the message lends and returns.
    pub(super) fn ask_by<M: Method>(
        self: &Arc<Self>,
        params: &M::Params,
        lent: Lent<'_>,
        deadline: &Deadline,
        wanted: Option<&dyn Fn() -> bool>,
        late: TakeLate,
    ) -> Result<M::Result, CallError> {
        let until = deadline.until(wanted);
        let asked = self.connection.ask::<M>(params, Vec::new(), &until).inspect_err(|_| self.not_sent(lent));
        let answer = asked.and_then(|asked| asked.wait(&until));
        match answer.map_err(|error| self.silent(error, M::NAME, deadline))? {
            Ok(answer) => Self::hear::<M>(answer).map_err(|error| explain(deadline, error, &self.client)),
            Err(number) => {
                self.abandon(number, late);
                let error = match until.has_passed() {
                    true => deadline.missed(&self.client, M::NAME),
                    false => unwanted().in_field(M::NAME),
                };
                Err(error.into())
            }
        }
    }

    /// Asks without waiting for the answer, which goes to `group`.
    pub(super) fn ask_into<M: Method>(
        &self,
        params: &M::Params,
        lent: Lent<'_>,
        deadline: &Deadline,
        group: &Arc<Group>,
    ) -> Result<u64> {
        let sent = self.connection.ask_into::<M>(params, group, &deadline.until(None));
        sent.inspect_err(|_| self.not_sent(lent)).map_err(|error| self.silent(error, M::NAME, deadline))
    }

    /// The other end knows nothing of what a message lends and returns that was not sent.
    fn not_sent(&self, Lent { handed, returned }: Lent<'_>) {
        self.lending.take_back(handed.map_or(&[], |handed| &handed.lent));
        self.lending.return_later(returned);
    }

    /// The error of a message that was not sent, or of a provider that has ended.
    pub(super) fn silent(&self, error: Error, what: &str, deadline: &Deadline) -> Error {
        match error.kind() {
            ErrorKind::TimedOut => deadline.missed(&self.client, what),
            ErrorKind::Io | ErrorKind::Corrupt => {
                let message = format!("{}, which provides it, is gone ({})", self.client, error.message());
                Error::new(ErrorKind::Io, message).in_field(what)
            }
            // Nothing else of the message is wrong than its length.
            ErrorKind::Invalid => {
                Error::unsupported(format!("{}: {TENSORS_INSTEAD}", error.message())).in_field("arguments")
            }
            _ => error.in_field(what),
        }
    }

    /// What has arrived for `group`, once something has, or until then.
    pub(super) fn wait_for(&self, group: &Group, until: &Until<'_>) -> Result<Vec<(u64, Answer)>> {
        self.connection.wait_for(group, until).map_err(|error| self.silent(error, p::Wait::NAME, &Deadline::from(None)))
    }

    pub(super) fn hear<M: Method>(Answer { response, .. }: Answer) -> Result<M::Result, CallError> {
        if let Some(error) = response.error() {
            return Err(CallError::from_object(error));
        }
        let value = response.outcome()?;
        let corrupt = |why: String| Error::corrupt(format!("the answer to {}: {why}", M::NAME));
        check_integers(value.get()).map_err(|error| corrupt(error.to_string()))?;
        Ok(serde_json::from_str(value.get()).map_err(|error| corrupt(error.to_string()))?)
    }

    /// Calls a function; `deadline` and `wanted` bound the wait.
    pub(super) fn call(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        deadline: &Deadline,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<Value, CallError> {
        let (params, handed) = self.params(name, arguments, deadline)?;
        let lent = Lent { handed: Some(&handed), returned: &params.returned };
        self.open(self.ask_by::<p::Call>(&params, lent, deadline, wanted, Self::let_go)?)
    }

    /// Takes a result that nobody waits for any more, so that its tensors are let go of.
    pub(super) fn let_go(self: &Arc<Self>, answer: Answer) {
        if let Ok(result) = Self::hear::<p::Call>(answer) {
            drop(self.open(result));
        }
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        deadline: &Deadline,
    ) -> Result<u64, CallError> {
        let (params, handed) = self.params(name, arguments, deadline)?;
        let lent = Lent { handed: Some(&handed), returned: &params.returned };
        let accepted = deadline.at_most(self.answer_timeout);
        Ok(self.ask_by::<p::Submit>(&params, lent, &accepted, None, |_, _| {})?.task)
    }

    pub(super) fn params(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        deadline: &Deadline,
    ) -> Result<(p::CallParams, Handed)> {
        let Encoded { args, kwargs, handed } = codec::encode_arguments(arguments, self)?;
        let (timeout_ms, returned) = (deadline.left_ms(), self.lending.returned());
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
        self.say(Frame { body, fds })
    }

    fn end(&self) {
        self.close();
    }
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

    fn outlet(&self) -> Outlet {
        Link::outlet(self)
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

/// Adds the provider to the failure of a call whose time is over.
pub(super) fn explain(deadline: &Deadline, error: CallError, provider: &str) -> CallError {
    match error {
        CallError::Failed(failure) if failure.is_timeout() && deadline.has_passed() => {
            let within = deadline.seconds();
            let message = format!("{provider} was not done after {within} s, and was asked to stop");
            CallError::Failed(Failure { message, ..failure })
        }
        error => error,
    }
}
