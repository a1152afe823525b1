//! One caller: its connection, and the state that the provider keeps for it.

use super::caller_state::CallerState;
use super::functions::Kept;
use super::run::Outcome;
use super::state::ProviderState;
use crate::arena::ConnectionArena;
use crate::codec::{self, CodecContext};
use crate::sender::Sender;
use crate::{Arguments, Object, TensorAllocator, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider::{
    ArenaRange, CallResult, CancelCall, CloseSlabs, ObjectRef, OpenSlab, ReleaseRanges,
};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::{self, CallCounts, Outbox, Reader, Request, WAITING_FRAMES_MAX};
use cotensor_rpc::{self as rpc, Call, Frame, check_integers};
use cotensor_store::{Holder, TensorStore};
use serde_json::{Map, Value as Json};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long to busy-poll for the next message after a run: callers often send one soon after an answer.
const BUSY_POLL: Duration = Duration::from_micros(750);
/// The time limit from a message's first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most calls of one caller without an answer. As many answers may wait to be read by the caller.
const CALLS_MAX: usize = WAITING_FRAMES_MAX / 2;
/// The most bytes of answers that wait to be read by a caller. Further answers are short errors, which always fit.
const ANSWERS_BYTES_MAX: usize = 32 << 20;
/// Notifications that are always admitted: the caller's later calls depend on them, or they end one.
const ALWAYS_ADMITTED: [&str; 4] = [OpenSlab::NAME, CloseSlabs::NAME, ReleaseRanges::NAME, CancelCall::NAME];

pub(super) struct Peer {
    pub(super) provider: Arc<ProviderState>,
    pub(super) number: u64,
    /// The caller's client name and process, for messages.
    pub(super) client: Arc<str>,
    pub(super) state: CallerState,
    store: Arc<ClientStore>,
    holder: Holder,
    socket: Arc<UnixStream>,
    /// `None` while a thread reads the socket, and after the end of the connection. The poller has the socket armed
    /// otherwise.
    reader: Mutex<Option<Reader>>,
    out: Arc<Outbox>,
    arena: Arc<ConnectionArena>,
    /// Calls without an answer.
    open_calls: AtomicUsize,
}

impl Peer {
    pub(super) fn new(
        provider: Arc<ProviderState>,
        number: u64,
        client: &str,
        store: Arc<ClientStore>,
        socket: UnixStream,
    ) -> Arc<Self> {
        let socket = Arc::new(socket);
        let holder = store.holder(&format!("provider for {client}"));
        let out = Arc::new(Outbox::new(Arc::clone(&socket)));
        let arena = ConnectionArena::of_provider(&store, provider.limits.memory_idle);
        let sender: Arc<dyn Sender> = Arc::clone(&out) as _;
        arena.set_sender(Arc::downgrade(&sender));
        Arc::new(Self {
            reader: Mutex::new(Some(Reader::new(Arc::clone(&provider.frames), MESSAGE_TIMEOUT, BUSY_POLL))),
            provider,
            number,
            client: Arc::from(client),
            state: CallerState::default(),
            store,
            holder,
            socket,
            out,
            arena,
            open_calls: AtomicUsize::new(0),
        })
    }

    /// Lets the poller report the socket.
    ///
    /// # Errors
    /// `Io` when the kernel has no memory for it.
    pub(super) fn listen(&self) -> Result<()> {
        self.provider.poller.add(&*self.socket, self.number)
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Takes the reader. `None` while another thread has it, and after the end of the connection.
    pub(super) fn take_reader(&self) -> Option<Reader> {
        lock(&self.reader).take()
    }

    /// Returns the reader and arms the socket.
    pub(super) fn return_reader(&self, mut reader: Reader) {
        reader.release_budget();
        *lock(&self.reader) = Some(reader);
        // After the reader is back: the thread that receives the event takes it.
        self.provider.poller.arm(&*self.socket, self.number);
    }

    /// Disarms the socket, so that a thread which busy-polls is the only one that sees the next message.
    pub(super) fn disarm(&self) {
        self.provider.poller.disarm(&*self.socket, self.number);
    }

    /// Ends the connection. Runs without another caller are cancelled, and objects and results are released.
    pub(super) fn end(&self) {
        self.out.end();
        self.state.end();
    }

    /// Closes the socket. The thread that reads the end of the connection removes the caller.
    pub(super) fn end_connection(&self) {
        self.out.end();
    }

    /// Allocates tensors for the caller. `in_arena` says that the caller is their only reader.
    pub(super) fn allocator(&self, in_arena: bool) -> TensorAllocator {
        TensorAllocator::new(Arc::clone(&self.store), in_arena.then(|| Arc::clone(&self.arena)))
    }

    /// Decodes the arguments of a call. `released` are ranges of this end's arena that the caller no longer reads.
    pub(super) fn arguments(
        &self,
        released: &[ArenaRange],
        args: Vec<Json>,
        kwargs: Map<String, Json>,
    ) -> Result<Arguments> {
        self.arena.reclaim(released);
        codec::decode_arguments(args, kwargs, self)
    }

    /// The arena of the connection.
    pub(super) fn arena(&self) -> &Arc<ConnectionArena> {
        &self.arena
    }

    /// Answers a call with the outcome of its run.
    pub(super) fn answer(&self, request: Request<Self>, outcome: &Outcome) {
        let value = match outcome {
            Ok(value) => value,
            Err(failure) => return request.error(failure.to_object()),
        };
        match self.encode(value) {
            Ok((result, ranges)) => {
                if !request.value(&result, Vec::new()) {
                    self.on_not_sent(&result, &ranges);
                }
            }
            Err(error) => request.error(rpc::to_object(&error.in_field("result"))),
        }
    }

    /// A result, and the arena ranges of its tensors.
    fn encode(&self, value: &Arc<Value>) -> Result<(CallResult, Vec<ArenaRange>)> {
        let (encoded, mut sent) = codec::encode(value, self)?;
        let ranges = std::mem::take(&mut sent.ranges);
        let taken = if sent.has_published {
            match self.state.add_result(value, sent) {
                Ok(number) => Some(number),
                Err((error, _sent)) => {
                    self.arena.reclaim(&ranges);
                    return Err(error);
                }
            }
        } else {
            None
        };
        Ok((CallResult { value: encoded, taken, released: self.arena.take_released() }, ranges))
    }

    /// Undoes the encoding of a result after the caller got an error instead.
    fn on_not_sent(&self, result: &CallResult, ranges: &[ArenaRange]) {
        self.arena.reclaim(ranges);
        self.arena.release_later(&result.released);
        if let Some(taken) = result.taken {
            self.state.take_result(taken);
        }
    }

    /// The object of a caller's reference.
    ///
    /// # Errors
    /// `Conflict` for a reference with another epoch, `NotFound` for a released one.
    pub(super) fn object(&self, object: ObjectRef) -> Result<Object> {
        self.check(object)?;
        self.state.object(object)
    }

    /// Releases a caller's reference.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub(super) fn release(&self, object: ObjectRef) -> Result<()> {
        self.check(object)?;
        self.state.release(object)
    }

    fn check(&self, object: ObjectRef) -> Result<()> {
        if object.epoch == self.provider.epoch {
            return Ok(());
        }
        let message = "the object's provider has restarted, or it is another provider; create the object again";
        Err(Error::new(ErrorKind::Conflict, message).in_field("object"))
    }
}

impl server::Peer for Peer {
    fn counts(&self) -> &CallCounts {
        &self.provider.counts
    }

    fn admit(&self, call: &Call) -> Result<()> {
        let is_admitted = call.id.is_none() && ALWAYS_ADMITTED.contains(&call.method.as_str());
        if self.open_calls.fetch_add(1, Ordering::SeqCst) >= CALLS_MAX && !is_admitted {
            return Err(Error::new(ErrorKind::Conflict, format!("{CALLS_MAX} calls of this caller wait for answers")));
        }
        call.params
            .as_deref()
            .map_or(Ok(()), |params| check_integers(params.get()))
            .map_err(|error| error.in_field("params"))
    }

    fn finished(&self) {
        self.open_calls.fetch_sub(1, Ordering::SeqCst);
    }

    fn check_backlog(&self, bytes: usize) -> Result<()> {
        match self.out.waiting_bytes() {
            0 => Ok(()),
            waiting if waiting + bytes <= ANSWERS_BYTES_MAX => Ok(()),
            _ => {
                let message = format!("{ANSWERS_BYTES_MAX} bytes of answers wait for this caller to read them");
                Err(Error::new(ErrorKind::Conflict, message).in_field("result"))
            }
        }
    }

    fn send(&self, frame: Frame) -> bool {
        // A failure ends the connection.
        self.out.send(frame).is_ok()
    }
}

impl Sender for Outbox {
    fn send_message(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()> {
        self.send(Frame { body, fds })
    }

    /// The provider's threads read at any time.
    fn read_arrived(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) {
        Outbox::end(self);
    }
}

impl CodecContext for Peer {
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
        self.allocator(true)
    }

    fn reference_to(&self, object: &Value) -> Result<ObjectRef> {
        let Value::Object(object) = object else {
            return Err(Error::unsupported(
                "an object of another provider cannot be a result: let the caller get it from that provider",
            ));
        };
        let id = self.provider.next_reference();
        self.state.add_object(id, object, self.provider.limits.objects_max)?;
        Ok(ObjectRef { id, epoch: self.provider.epoch })
    }

    fn resolve(&self, object: ObjectRef) -> Result<Value> {
        let other = self.provider.group.find(object.epoch).filter(|_| object.epoch != self.provider.epoch);
        let object = match other {
            Some(other) => other.object_of(&self.client, object)?,
            None => self.object(object)?,
        };
        Ok(match object.get::<Kept>() {
            Some(Kept(value)) => value.clone(),
            None => Value::Object(object),
        })
    }
}
