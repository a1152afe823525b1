//! The connection to one provider.

use super::abandoned::AbandonedCalls;
use crate::allocator::TensorAllocator;
use crate::arena::ConnectionArena;
use crate::call_limit::CallLimit;
use crate::codec::{self, CodecContext, EncodedArguments, SentTensors};
use crate::failure::{CallError, Failure};
use crate::sender::Sender;
use crate::value::{Arguments, ObjectConnection, RemoteObject, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{Method, ProviderInfo};
use cotensor_core::waiting::{WaitReport, Waiting};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::wait_report;
use cotensor_rpc::Deadline;
use cotensor_rpc::TENSORS_INSTEAD;
use cotensor_rpc::{Answer, CallGroup, Connection, WaitLimit, Waited};
use cotensor_rpc::{Frame, check_integers};
use cotensor_store::{Holder, TensorStore};
use serde_json::value::RawValue;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to busy-poll for a result before sleeping: sleeping and waking up takes longer than a short function.
const BUSY_POLL: Duration = Duration::from_millis(1);
/// The time limit for requests that a provider answers without running a function.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a thread reads messages that have arrived: the shortest wait that a socket has.
const READ_ARRIVED: Duration = Duration::from_millis(1);

/// The arena ranges of a message: those that it sends, and those that it releases.
#[derive(Clone, Copy, Default)]
pub(super) struct MessageRanges<'a> {
    pub(super) sent: Option<&'a SentTensors>,
    pub(super) released: &'a [p::ArenaRange],
}

/// Disposes of the result of an abandoned call.
pub(super) type DisposeResult = fn(&Arc<ProviderConnection>, Answer);

/// The connection to one provider, for all callers of this process.
pub(crate) struct ProviderConnection {
    connection: Arc<Connection>,
    abandoned: Arc<AbandonedCalls>,
    answer_timeout: Duration,
    arena: Arc<ConnectionArena>,
    epoch: u64,
    group: Option<u64>,
    client: String,
    store: Arc<ClientStore>,
    holder: Holder,
}

impl ProviderConnection {
    /// A connection to `provider` over `socket`. `timeout` bounds requests that need no function to run. Memory of large
    /// arguments is kept for `memory_idle` while it is not used.
    pub(super) fn new(
        socket: UnixStream,
        provider: &ProviderInfo,
        store: Arc<ClientStore>,
        timeout: Option<Duration>,
        memory_idle: Duration,
    ) -> Arc<Self> {
        let arena = ConnectionArena::of_caller(&store, memory_idle);
        let receiver = Arc::clone(&arena);
        let on_notification = Box::new(move |method: &str, params: &RawValue, fds| {
            receiver.on_notification(method, params.get(), fds);
        });
        let connection = Connection::over(socket, on_notification);
        let (reporting, client) = (Arc::clone(&store), provider.client.clone());
        let describe = move |method: &str| describe(&reporting, &client, &format!("to answer {method}"));
        let connection = connection.with_reports(Box::new(describe));
        let connection = Arc::new(connection.with_peer_name(&provider.client).with_busy_poll(BUSY_POLL));
        let sender: Arc<dyn Sender> = Arc::clone(&connection) as _;
        arena.set_sender(Arc::downgrade(&sender));
        let holder = store.holder("functions");
        let (epoch, group, client) = (provider.epoch, provider.group, provider.client.clone());
        let answer_timeout = timeout.map_or(ANSWER_TIMEOUT, |timeout| timeout.min(ANSWER_TIMEOUT));
        let abandoned = AbandonedCalls::new(Arc::clone(&connection));
        Arc::new(Self { connection, abandoned, answer_timeout, arena, epoch, group, client, store, holder })
    }

    /// Allocates tensors of arguments.
    pub(super) fn allocator(&self) -> TensorAllocator {
        TensorAllocator::new(Arc::clone(&self.store), Some(Arc::clone(&self.arena)))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.has_ended()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The provider's name and process, for messages.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    /// Sends a request that needs no function to run, and waits for the answer.
    pub(super) fn request<M: Method>(self: &Arc<Self>, params: &M::Params) -> Result<M::Result, CallError> {
        let (what, limit) = (format_args!("to answer {}", M::NAME), CallLimit::of_request(self.answer_timeout.into()));
        self.request_until::<M>(params, what, MessageRanges::default(), &limit, |_, _| {})
    }

    /// Sends a request and waits for the answer until `limit`. A request whose caller stops waiting is cancelled. `dispose`
    /// receives a later answer. `what` is the awaited event in reports, such as "to run f".
    pub(super) fn request_until<M: Method>(
        self: &Arc<Self>,
        params: &M::Params,
        what: fmt::Arguments<'_>,
        ranges: MessageRanges<'_>,
        call_limit: &CallLimit<'_>,
        dispose: DisposeResult,
    ) -> Result<M::Result, CallError> {
        let describe = || self.describe(&what.to_string());
        let waiting = Waiting::new(&describe);
        let goes_on = || call_limit.goes_on();
        let condition = call_limit.has_condition().then_some(&goes_on as &dyn Fn() -> bool);
        let deadline = &call_limit.deadline;
        let limit = deadline.wait_limit(condition).reported(&waiting);
        let call =
            self.connection.send_call::<M>(params, Vec::new(), &limit).inspect_err(|_| self.on_send_failed(ranges));
        let answer = call.and_then(|call| call.wait(&limit));
        match answer.map_err(|error| self.connection_error(error, M::NAME, deadline))? {
            Waited::Answer(answer) => {
                Self::decode_answer::<M>(answer).map_err(|error| with_provider(deadline, error, &self.client))
            }
            Waited::LimitPassed(number) => {
                self.abandon(number, dispose);
                if limit.has_passed() {
                    return Err(deadline.timeout_error(&self.client, M::NAME).into());
                }
                self.cancel(number);
                Err(call_limit.stopped(M::NAME))
            }
        }
    }

    /// A report of a wait for this provider; `what` is the awaited event.
    pub(super) fn describe(&self, what: &str) -> WaitReport {
        describe(&self.store, &self.client, what)
    }

    /// Abandons a call. `dispose` receives its answer.
    pub(super) fn abandon(self: &Arc<Self>, id: u64, dispose: DisposeResult) {
        let connection = Arc::clone(self);
        self.abandoned.add(id, Box::new(move |answer| dispose(&connection, answer)));
    }

    /// Cancels an abandoned call. Its answer comes soon.
    pub(super) fn cancel(&self, id: u64) {
        self.notify::<p::CancelCall>(&p::CancelCallParams { call: id });
    }

    /// Sends a request without waiting. `group` receives the answer. Returns the call's number.
    pub(super) fn request_into<M: Method>(
        &self,
        params: &M::Params,
        ranges: MessageRanges<'_>,
        deadline: &Deadline,
        group: &Arc<CallGroup>,
    ) -> Result<u64> {
        let sent = self.connection.send_grouped::<M>(params, group, &deadline.wait_limit(None));
        sent.inspect_err(|_| self.on_send_failed(ranges))
            .map_err(|error| self.connection_error(error, M::NAME, deadline))
    }

    /// Frees the ranges of a message that was not sent, and announces the released ranges in the next one.
    fn on_send_failed(&self, MessageRanges { sent, released }: MessageRanges<'_>) {
        self.arena.reclaim(sent.map_or(&[], |sent| &sent.ranges));
        self.arena.release_later(released);
    }

    /// The error of a message that was not sent or not answered, with the provider's name.
    pub(super) fn connection_error(&self, error: Error, what: &str, deadline: &Deadline) -> Error {
        match error.kind() {
            ErrorKind::TimedOut => deadline.timeout_error(&self.client, what),
            ErrorKind::Io | ErrorKind::Corrupt => {
                let message = format!("the provider {} has ended ({})", self.client, error.message());
                Error::new(ErrorKind::Io, message)
            }
            // The message is too long.
            ErrorKind::Invalid => {
                Error::unsupported(format!("{}: {TENSORS_INSTEAD}", error.message())).in_field("arguments")
            }
            _ => error.in_field(what),
        }
    }

    /// Waits for answers of `group`.
    pub(super) fn wait_for(&self, group: &CallGroup, limit: &WaitLimit<'_>) -> Result<Vec<(u64, Answer)>> {
        self.connection
            .wait_for(group, limit)
            .map_err(|error| self.connection_error(error, p::Wait::NAME, &Deadline::from(None)))
    }

    pub(super) fn decode_answer<M: Method>(Answer { response, .. }: Answer) -> Result<M::Result, CallError> {
        if let Some(error) = response.error() {
            return Err(CallError::from_object(error));
        }
        let value = response.outcome()?;
        let corrupt = |why: String| Error::corrupt(format!("the answer to {}: {why}", M::NAME));
        check_integers(value.get()).map_err(|error| corrupt(error.to_string()))?;
        Ok(serde_json::from_str(value.get()).map_err(|error| corrupt(error.to_string()))?)
    }

    /// Calls a function and waits for its result until `limit`.
    pub(super) fn call(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        limit: &CallLimit<'_>,
    ) -> Result<Value, CallError> {
        let (params, sent) = self.params(name, arguments, limit)?;
        let ranges = MessageRanges { sent: Some(&sent), released: &params.released };
        let what = format_args!("to run {name}");
        let result = self.request_until::<p::Call>(&params, what, ranges, limit, Self::dispose_result)?;
        self.open(result)
    }

    /// Releases the tensors of a result.
    pub(super) fn dispose_result(self: &Arc<Self>, answer: Answer) {
        if let Ok(result) = Self::decode_answer::<p::Call>(answer) {
            let _ = self.open(result);
        }
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        deadline: &Deadline,
    ) -> Result<u64, CallError> {
        let (params, sent) = self.params(name, arguments, &CallLimit::of_request(*deadline))?;
        let ranges = MessageRanges { sent: Some(&sent), released: &params.released };
        let accepted = CallLimit::of_request(deadline.at_most(self.answer_timeout));
        let what = format_args!("to accept a task of {name}");
        Ok(self.request_until::<p::Submit>(&params, what, ranges, &accepted, |_, _| {})?.task)
    }

    pub(super) fn params(
        self: &Arc<Self>,
        name: &str,
        arguments: &Arguments,
        limit: &CallLimit<'_>,
    ) -> Result<(p::CallParams, SentTensors)> {
        let EncodedArguments { args, kwargs, sent } = codec::encode_arguments(arguments, self)?;
        let (timeout_ms, waiting, released) = (limit.deadline.left_ms(), limit.waiting(), self.arena.take_released());
        Ok((p::CallParams { function: name.to_owned(), args, kwargs, timeout_ms, waiting, released }, sent))
    }

    /// Decodes a result. Its tensors are leased to this process.
    pub(super) fn open(self: &Arc<Self>, result: p::CallResult) -> Result<Value, CallError> {
        self.arena.reclaim(&result.released);
        let value = codec::decode(result.value, self);
        if let Some(taken) = result.taken {
            // A provider that has ended holds no leases.
            self.notify::<p::Taken>(&p::TakenParams { taken });
        }
        Ok(value?)
    }

    fn notify<M: Method>(&self, params: &M::Params) {
        let _ = self.connection.notify::<M>(params);
    }
}

impl Sender for Connection {
    fn send_message(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()> {
        self.send_notification(Frame { body, fds })
    }

    fn read_arrived(&self) -> Result<()> {
        let limit = WaitLimit { deadline: Some(Instant::now() + READ_ARRIVED), ..WaitLimit::default() };
        self.wait_for(&CallGroup::default(), &limit).map(drop)
    }

    fn close(&self) {
        Connection::close(self);
    }
}

impl CodecContext for Arc<ProviderConnection> {
    fn store(&self) -> &ClientStore {
        &self.store
    }

    fn holder(&self) -> &Holder {
        &self.holder
    }

    fn arena(&self) -> &Arc<ConnectionArena> {
        &self.arena
    }

    fn allocator(&self) -> TensorAllocator {
        ProviderConnection::allocator(self)
    }

    fn reference_to(&self, object: &Value) -> Result<p::ObjectRef> {
        match object {
            Value::Remote(object) => object.reference_for(self),
            _ => {
                Err(Error::unsupported("a local object cannot be an argument: pass an object that a provider returned"))
            }
        }
    }

    fn resolve(&self, object: p::ObjectRef) -> Result<Value> {
        Ok(Value::Remote(Arc::new(RemoteObject::new(Arc::clone(self) as _, object))))
    }
}

impl ObjectConnection for ProviderConnection {
    fn call_object(
        self: Arc<Self>,
        object: p::ObjectRef,
        method: &str,
        arguments: &Arguments,
        limit: &CallLimit<'_>,
    ) -> Result<Value, CallError> {
        let EncodedArguments { args, kwargs, sent } = codec::encode_arguments(arguments, &self)?;
        let (timeout_ms, waiting, released) = (limit.deadline.left_ms(), limit.waiting(), self.arena.take_released());
        let method = method.to_owned();
        let params = p::CallObjectParams { object, method, args, kwargs, timeout_ms, waiting, released };
        let ranges = MessageRanges { sent: Some(&sent), released: &params.released };
        let what = format_args!("to run {}", params.method);
        let result = self.request_until::<p::CallObject>(&params, what, ranges, limit, Self::dispose_result)?;
        self.open(result)
    }

    fn release_object(self: Arc<Self>, object: p::ObjectRef) -> Result<(), CallError> {
        self.request::<p::ReleaseObject>(&p::ObjectParams { object }).map(drop)
    }

    fn notify_release(&self, object: p::ObjectRef) {
        self.notify::<p::ReleaseObject>(&p::ObjectParams { object });
    }

    fn allocator(&self) -> TensorAllocator {
        ProviderConnection::allocator(self)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn group(&self) -> Option<u64> {
        self.group
    }

    fn client(&self) -> &str {
        &self.client
    }

    fn is_closed(&self) -> bool {
        ProviderConnection::is_closed(self)
    }

    fn close(&self) {
        self.connection.close();
    }
}

/// A report of a wait for a provider, by its name and process; `what` is the awaited event.
fn describe(store: &ClientStore, provider: &str, what: &str) -> WaitReport {
    let pids = store.processes_of(provider);
    wait_report(&pids, "a process", &format!(", the provider {provider}, {what}"), true)
}

/// Adds the provider's name to the failure of a call that timed out.
pub(super) fn with_provider(deadline: &Deadline, error: CallError, provider: &str) -> CallError {
    match error {
        CallError::Failed(failure) if failure.is_timeout() && deadline.has_passed() => {
            let within = deadline.seconds();
            let message = format!("{provider} did not finish within {within} s and was cancelled");
            CallError::Failed(Failure { message, ..failure })
        }
        error => error,
    }
}
