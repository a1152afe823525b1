//! One caller: a socket, and what the caller has of this provider. All of it goes when the caller does.

use super::flight::{Flight, Outcome};
use super::functions::Kept;
use super::reader::{self, Away, CallReader, Relief};
use super::shared::Shared;
use super::timer::Limit;
use crate::arena::ConnectionArena;
use crate::codec::{self, CodecContext, SentTensors};
use crate::sender::Sender;
use crate::threads::spawn;
use crate::{Arguments, Object, TensorAllocator, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider::{ArenaRange, CallResult, ObjectRef, OpenSlab, ReleaseRanges};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::{self, Outbox, Registry, Request, WAITING_FRAMES_MAX, handle};
use cotensor_rpc::{self as rpc, Call, Frame, check_integers, is_batch};
use cotensor_store::{Holder, TensorStore};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Calls that one caller may wait for; as many answers may wait to be read by him.
const CALLS_MAX: usize = WAITING_FRAMES_MAX / 2;
/// Bytes of answers that may wait to be read by a caller; further ones are short errors, for which there is room left.
const ANSWERS_BYTES_MAX: usize = 32 << 20;
/// Results whose tensors a caller has not taken yet.
const GIVEN_MAX: usize = 16 << 10;

pub(super) struct Peer {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    /// Name and process, for people.
    pub(super) client: Arc<str>,
    store: Arc<ClientStore>,
    holder: Holder,
    socket: Arc<UnixStream>,
    reader: Mutex<CallReader>,
    inline: Mutex<Inline>,
    away: Away,
    relief: Relief,
    out: Arc<Outbox>,
    arena: Arc<ConnectionArena>,
    calls: AtomicUsize,
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    objects: HashMap<u64, Object>,
    /// Results whose tensors stay leased until the caller has leased them, too.
    given: HashMap<u64, (Arc<Value>, SentTensors)>,
    /// Runs that the caller waits for, and under which number.
    runs: HashMap<u64, Run>,
}

/// Whether the reader thread runs the call that it handles at the moment.
#[derive(Default)]
enum Inline {
    /// A worker runs it.
    #[default]
    Off,
    /// The reader thread may run it.
    Free,
    /// The reader thread runs this next.
    Run(Arc<Flight>),
}

/// A run that a caller waits for.
struct Run {
    flight: Arc<Flight>,
    watch: u64,
    limit: Option<Limit>,
}

impl Peer {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: u64,
        client: &str,
        store: Arc<ClientStore>,
        socket: UnixStream,
    ) -> Arc<Self> {
        let socket = Arc::new(socket);
        let holder = store.holder(&format!("provider for {client}"));
        let (out, arena) = (Arc::new(Outbox::new(Arc::clone(&socket))), Arc::<ConnectionArena>::default());
        let reader = CallReader::new(Arc::clone(&shared.frames));
        let sender: Arc<dyn Sender> = Arc::clone(&out) as _;
        arena.set_sender(Arc::downgrade(&sender));
        Arc::new(Self {
            shared,
            number,
            client: Arc::from(client),
            store,
            holder,
            out,
            arena,
            socket,
            reader: Mutex::new(reader),
            inline: Mutex::default(),
            away: Away::default(),
            relief: Relief::default(),
            calls: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Reads what the caller says, and runs what is short, until the caller ends.
    fn serve(self: &Arc<Self>) {
        while !self.ended.load(Ordering::SeqCst) {
            let Ok(Some((frame, alone))) = lock(&self.reader).next(&self.socket) else { break };
            *lock(&self.inline) = if alone && !is_batch(&frame.body) { Inline::Free } else { Inline::Off };
            handle(self, frame, None);
            // A statement of its own: the lock is not held during the run.
            let inline = std::mem::take(&mut *lock(&self.inline));
            if let Inline::Run(flight) = inline
                && !self.run(flight)
                && !self.is_back()
            {
                return;
            }
        }
        self.end();
        drop(lock(&self.shared.peers).remove(&self.number));
    }

    /// Leaves a run to the thread that reads its call, if that thread is free and `begin` agrees.
    pub(super) fn run_inline(&self, flight: &Arc<Flight>, begin: impl FnOnce() -> bool) -> bool {
        let mut inline = lock(&self.inline);
        let free = matches!(*inline, Inline::Free) && begin();
        if free {
            *inline = Inline::Run(Arc::clone(flight));
        }
        free
    }

    /// Runs a call on the thread that read it; false when it took so long that another reads on.
    fn run(&self, flight: Arc<Flight>) -> bool {
        let shared = &self.shared;
        let at = self.away.go(shared.started);
        shared.timer.hurry();
        let mut waited = false;
        // Before the answer: what comes after it had not to wait.
        shared.run(&flight, || waited = reader::has_more(&self.socket));
        // Its result is its own no longer.
        drop(flight);
        shared.pool.end();
        let back = self.away.back(at);
        if back {
            lock(&self.reader).ran(waited);
        }
        back
    }

    /// Has another thread read on where the reader has been away for too long.
    pub(super) fn relieve(self: &Arc<Self>) {
        if !self.away.is_late(self.shared.started) || self.relief.call() {
            return;
        }
        let peer = Arc::clone(self);
        // Without a thread, the next tick tries again.
        drop(spawn("cotensor-caller", move || {
            if peer.away.relieve(peer.shared.started) {
                peer.serve();
            }
        }));
    }

    /// Waits until the thread that reads instead of this one is away for long itself; false at the end.
    fn is_back(&self) -> bool {
        while self.relief.stand_by() {
            if self.away.relieve(self.shared.started) {
                return true;
            }
        }
        false
    }

    /// Starts a thread that reads.
    pub(super) fn read(self: &Arc<Self>) -> Result<()> {
        let peer = Arc::clone(self);
        spawn("cotensor-caller", move || peer.serve())
    }

    /// Ends the connection. Nobody waits for the caller's calls any more, and what it had is let go.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.out.end();
        self.relief.end();
        let state = std::mem::take(&mut *lock(&self.state));
        for run in state.runs.values() {
            run.flight.leave(run.watch);
        }
    }

    /// Closes the socket. The reader thread notices that and releases what the caller holds.
    pub(super) fn end_connection(&self) {
        self.out.end();
    }

    /// Where tensors go that are for the caller: lent to him where he is their only reader.
    pub(super) fn allocator(&self, lent: bool) -> TensorAllocator {
        TensorAllocator::new(Arc::clone(&self.store), lent.then(|| Arc::clone(&self.arena)))
    }

    /// A number for something of the caller's.
    pub(super) fn next(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        state.next
    }

    /// The caller waits for `flight` under the number `run`.
    pub(super) fn waits(&self, run: u64, flight: &Arc<Flight>, watch: u64) {
        lock(&self.state).runs.insert(run, Run { flight: Arc::clone(flight), watch, limit: None });
        if flight.is_over() || self.ended.load(Ordering::SeqCst) {
            self.waits_no_more(run);
        }
    }

    /// The caller does not wait any more: it has its answer, or its time is over.
    pub(super) fn waits_no_more(&self, run: u64) {
        let run = lock(&self.state).runs.remove(&run);
        if let Some(Run { flight, watch, .. }) = run {
            flight.leave(watch);
        }
    }

    /// The time limit of a run that the caller waits for goes when the waiting does.
    pub(super) fn keep_limit(&self, run: u64, limit: Limit) {
        let mut state = lock(&self.state);
        let surplus = match state.runs.get_mut(&run) {
            Some(run) => run.limit.replace(limit),
            None => Some(limit),
        };
        drop(state);
        drop(surplus);
    }

    /// The arguments of a call, beside which the caller says what he reads no more.
    pub(super) fn arguments(
        &self,
        released: &[ArenaRange],
        args: Vec<Json>,
        kwargs: Map<String, Json>,
    ) -> Result<Arguments> {
        self.arena.reclaim(released);
        codec::decode_arguments(args, kwargs, self)
    }

    /// What the caller lends, and is lent.
    pub(super) fn arena(&self) -> &ConnectionArena {
        &self.arena
    }

    /// Answers a call with what its run gave.
    pub(super) fn give(&self, request: Request<Self>, outcome: &Outcome) {
        let value = match outcome {
            Ok(value) => value,
            Err(failure) => return request.error(failure.to_object()),
        };
        match self.encode(value) {
            Ok((result, lent)) => {
                if !request.value(&result, Vec::new()) {
                    self.not_sent(&result, &lent);
                }
            }
            Err(error) => request.error(rpc::to_object(&error.in_field("result"))),
        }
    }

    /// A result, and what it lends.
    fn encode(&self, value: &Arc<Value>) -> Result<(CallResult, Vec<ArenaRange>)> {
        let (encoded, mut handed) = codec::encode(value, self)?;
        let lent = std::mem::take(&mut handed.ranges);
        if !handed.has_published {
            return Ok((CallResult { value: encoded, taken: None, released: self.arena.take_released() }, lent));
        }
        let mut state = lock(&self.state);
        if state.given.len() >= GIVEN_MAX {
            drop(state);
            self.arena.reclaim(&lent);
            let message = format!("the caller has not taken {GIVEN_MAX} results (`result.taken`)");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        state.next += 1;
        let taken = state.next;
        state.given.insert(taken, (Arc::clone(value), handed));
        drop(state);
        Ok((CallResult { value: encoded, taken: Some(taken), released: self.arena.take_released() }, lent))
    }

    /// The caller got an error in place of a result, and knows nothing of what that lends and returns.
    fn not_sent(&self, result: &CallResult, lent: &[ArenaRange]) {
        self.arena.reclaim(lent);
        self.arena.release_later(&result.released);
        if let Some(taken) = result.taken {
            self.taken(taken);
        }
    }

    /// The caller leases a result's tensors itself.
    pub(super) fn taken(&self, number: u64) {
        let given = lock(&self.state).given.remove(&number);
        drop(given);
    }

    /// An object that the caller has a reference to.
    ///
    /// # Errors
    /// `Conflict` for a reference from an earlier life of this provider, `NotFound` for one that was given back.
    pub(super) fn object(&self, object: ObjectRef) -> Result<Object> {
        self.check(object)?;
        lock(&self.state).objects.get(&object.id).cloned().ok_or_else(|| gone(object))
    }

    /// Lets an object go, once.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub(super) fn release(&self, object: ObjectRef) -> Result<()> {
        self.check(object)?;
        let released = lock(&self.state).objects.remove(&object.id);
        released.map(drop).ok_or_else(|| gone(object))
    }

    fn check(&self, object: ObjectRef) -> Result<()> {
        if object.epoch == self.shared.epoch {
            return Ok(());
        }
        let message = "this object is gone: its provider has restarted since, or it is another provider's";
        Err(Error::new(ErrorKind::Conflict, message).in_field("object"))
    }
}

impl server::Peer for Peer {
    fn registry(&self) -> &Registry<Self> {
        &self.shared.methods
    }

    fn admit(&self, call: &Call) -> Result<()> {
        // The caller's next calls need the memory that such notifications open and return.
        let is_lending = call.id.is_none() && matches!(call.method.as_str(), OpenSlab::NAME | ReleaseRanges::NAME);
        if self.calls.fetch_add(1, Ordering::SeqCst) >= CALLS_MAX && !is_lending {
            return Err(Error::new(ErrorKind::Conflict, format!("{CALLS_MAX} calls of this caller wait for answers")));
        }
        call.params
            .as_deref()
            .map_or(Ok(()), |params| check_integers(params.get()))
            .map_err(|error| error.in_field("params"))
    }

    fn finished(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
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

    fn close(&self) {
        Outbox::end(self);
    }
}

fn gone(object: ObjectRef) -> Error {
    Error::not_found(format!("object {} was given back already", object.id)).in_field("object")
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
                "an object of another provider cannot be passed on: ask that provider for it",
            ));
        };
        let mut state = lock(&self.state);
        if state.objects.len() >= self.shared.limits.objects_max {
            let message = format!("the caller has references to {} objects", state.objects.len());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        state.next += 1;
        let id = state.next;
        state.objects.insert(id, object.clone());
        Ok(ObjectRef { id, epoch: self.shared.epoch })
    }

    fn resolve(&self, object: ObjectRef) -> Result<Value> {
        let object = self.object(object)?;
        Ok(match object.get::<Kept>() {
            Some(Kept(value)) => value.clone(),
            None => Value::Object(object),
        })
    }
}
