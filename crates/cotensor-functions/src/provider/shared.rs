//! What the threads of a provider share.

use super::flight::{Flight, Outcome, RunOptions, Watcher};
use super::functions::{Function, Functions};
use super::peer::Peer;
use super::pool::{self, Pool};
use super::tasks::{Tasks, Waiter};
use super::timer::{Limit, Timer};
use crate::{Arguments, Failure, Limits, Object, TensorAllocator};
use cotensor_client::ClientStore;
use cotensor_client::protocol::Resume;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, ErrorKind, Result};
use cotensor_rpc::Connection;
use cotensor_rpc::FrameBudget;
use cotensor_rpc::server::Registry;
use cotensor_store::Clock;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

pub(super) struct Shared {
    pub(super) epoch: u64,
    pub(super) methods: Registry<Peer>,
    pub(super) started: Instant,
    pub(super) limits: Limits,
    pub(super) functions: Functions,
    pub(super) tasks: Tasks,
    pub(super) pool: Pool,
    pub(super) timer: Timer,
    /// For the messages that all callers send.
    pub(super) frames: Arc<FrameBudget>,
    /// The connection on which the functions are offered, while there is one.
    pub(super) connection: Mutex<Option<Arc<Connection>>>,
    /// The session that the functions were offered in last, to be taken up by the next.
    pub(super) session: Mutex<Option<Resume>>,
    store: RwLock<Arc<ClientStore>>,
    clock: Arc<dyn Clock>,
    /// Runs that equal calls may join.
    flights: Mutex<HashMap<ContentHash, Weak<Flight>>>,
    pub(super) peers: Mutex<HashMap<u64, Arc<Peer>>>,
    next_peer: AtomicU64,
    closed: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        methods: Registry<Peer>,
        store: Arc<ClientStore>,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        Ok(Arc::new(Self {
            // Numbers in JSON are exact up to 2^53.
            epoch: u64::from_le_bytes(epoch) >> 11,
            methods,
            started: Instant::now(),
            functions: Functions::default(),
            tasks: Tasks::new(Arc::clone(&clock), limits.task_ttl, limits.tasks_max),
            pool: Pool::new(limits.workers.max(1), limits.waiting_max),
            timer: Timer::default(),
            frames: FrameBudget::of_server(),
            connection: Mutex::default(),
            session: Mutex::default(),
            store: RwLock::new(store),
            clock,
            flights: Mutex::default(),
            peers: Mutex::default(),
            next_peer: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            limits,
        }))
    }

    pub(super) fn store(&self) -> Arc<ClientStore> {
        Arc::clone(&self.store.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Callers that come from now on are of another daemon's.
    pub(super) fn replace_store(&self, store: Arc<ClientStore>) {
        *self.store.write().unwrap_or_else(std::sync::PoisonError::into_inner) = store;
    }

    pub(super) fn registration(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).clone()
    }

    /// Serves a caller from a thread of its own.
    pub(super) fn welcome(self: &Arc<Self>, client: &str, socket: UnixStream) {
        let number = self.next_peer.fetch_add(1, Ordering::Relaxed);
        let peer = Peer::new(Arc::clone(self), number, client, self.store(), socket);
        {
            let mut peers = lock(&self.peers);
            // Refused by the end of its socket.
            if self.is_closed() || peers.len() >= self.limits.callers_max {
                return;
            }
            peers.insert(number, Arc::clone(&peer));
        }
        if peer.read().is_err() {
            drop(lock(&self.peers).remove(&number));
        }
    }

    pub(super) fn callers(&self) -> usize {
        lock(&self.peers).len()
    }

    /// A run of a function for a caller, whose result's tensors go to `allocator`; none when the result was there, and `watcher`
    /// has been told. A new run is to be [lined up](Self::line_up).
    pub(super) fn launch(
        self: &Arc<Self>,
        function: &Arc<Function>,
        arguments: Arguments,
        peer: &Peer,
        mut watcher: Watcher,
        allocator: TensorAllocator,
    ) -> Result<Option<Launched>> {
        let key = function.key(&arguments);
        let kept = || Some(lock(function.run_options.results.as_ref()?).get(key.as_ref()?, self.clock.now())).flatten();
        if let Some(value) = kept() {
            watcher(&Ok(value));
            return Ok(None);
        }
        let work = {
            let function = Arc::clone(function);
            Box::new(move |context: &_| function.call(&arguments, context))
        };
        let (name, client) = (Arc::clone(&function.name), Arc::clone(&peer.client));
        let flight = Flight::new(name, client, function.run_options.clone(), key, allocator, work);
        let Some(key) = key.filter(|_| function.options.singleflight) else {
            return Launched::new(flight, watcher).map(Some);
        };
        let mut flights = lock(&self.flights);
        if let Some(running) = flights.get(&key).and_then(Weak::upgrade) {
            match running.watch(watcher) {
                Ok(watch) => return Ok(Some(Launched { flight: running, watch, is_new: false })),
                // It was given up: this one takes its place.
                Err(back) => watcher = back,
            }
        }
        // One that was running a moment ago may have left its result.
        if let Some(value) = kept() {
            drop(flights);
            watcher(&Ok(value));
            return Ok(None);
        }
        let launched = Launched::new(flight, watcher)?;
        flights.insert(key, Arc::downgrade(&launched.flight));
        Ok(Some(launched))
    }

    /// As [`launch`](Self::launch), for a method of an object.
    pub(super) fn launch_method(
        self: &Arc<Self>,
        object: Object,
        method: String,
        arguments: Arguments,
        peer: &Peer,
        watcher: Watcher,
    ) -> Result<Launched> {
        let name = Arc::from(format!("object.{method}"));
        let work = Box::new(move |context: &_| object.call(&method, &arguments, context));
        let flight =
            Flight::new(name, Arc::clone(&peer.client), RunOptions::default(), None, peer.allocator(true), work);
        Launched::new(flight, watcher)
    }

    /// Has a worker run it, unless `reader` is the caller whose reader thread may run it at once.
    pub(super) fn line_up(&self, Launched { flight, watch, .. }: &Launched, reader: Option<&Peer>) -> Result<()> {
        // Who runs one call at a time has its callers wait in order.
        if let Some(peer) = reader
            && pool::serial_queue(flight).is_none()
            && peer.run_inline(flight, || self.pool.begin())
        {
            return Ok(());
        }
        if let Err(error) = self.pool.submit(flight) {
            // Others may have joined it by now; whoever asked is told by the error.
            self.forget_flight(flight);
            flight.leave(*watch);
            flight.give_up(Failure::from(error.clone()));
            return Err(error);
        }
        Ok(())
    }

    /// Runs queued calls on this thread until the provider ends.
    pub(super) fn work(self: &Arc<Self>) {
        while let Some(flight) = self.pool.next() {
            self.run(&flight, || {});
            self.pool.next_in_series(&flight);
            self.pool.end();
        }
    }

    /// Runs on this thread; `done` is called before anybody is told of the outcome.
    pub(super) fn run(self: &Arc<Self>, flight: &Arc<Flight>, done: impl FnOnce()) {
        if let Some(work) = flight.start() {
            let limit = self.limit_run(flight);
            let outcome = flight.run(work);
            drop(limit);
            done();
            self.landed(flight, outcome);
        } else {
            self.forget_flight(flight);
        }
    }

    /// Has other threads read where a reader runs something long.
    pub(super) fn relieve(&self) {
        let peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        peers.iter().for_each(Peer::relieve);
    }

    /// A run is over.
    pub(super) fn landed(&self, flight: &Arc<Flight>, outcome: Outcome) {
        if let (Ok(value), Some(key), Some(results)) = (&outcome, flight.key, &flight.options.results) {
            let gone = lock(results).insert(key, Arc::clone(value), self.clock.now());
            drop(gone);
        }
        // What is kept is found from here on, so that nobody has to join.
        self.forget_flight(flight);
        flight.finish(outcome);
    }

    /// Nobody joins this run any more.
    pub(super) fn forget_flight(&self, flight: &Arc<Flight>) {
        let Some(key) = &flight.key else { return };
        let mut flights = lock(&self.flights);
        if flights.get(key).is_some_and(|known| known.as_ptr() == Arc::as_ptr(flight)) {
            flights.remove(key);
        }
    }

    /// The time that a run may take, from now on.
    pub(super) fn limit_run(self: &Arc<Self>, flight: &Arc<Flight>) -> Option<Limit> {
        let timeout = flight.options.timeout?;
        let (shared, running) = (Arc::downgrade(self), Arc::clone(flight));
        let alarm = move || {
            if let Some(shared) = shared.upgrade() {
                shared.forget_flight(&running);
            }
            running.give_up(Failure::timed_out(timeout));
        };
        self.timer.after(timeout, Box::new(alarm))
    }

    /// Has a function run as a task; its number.
    ///
    /// # Errors
    /// `Conflict` when there are too many.
    pub(super) fn submit(
        self: &Arc<Self>,
        function: &Arc<Function>,
        arguments: Arguments,
        peer: &Peer,
        timeout: Option<Duration>,
    ) -> Result<u64> {
        let task = self.tasks.add(&function.name, &peer.client)?;
        let limit = timeout.and_then(|timeout| {
            let shared = Arc::downgrade(self);
            let alarm = move || {
                if let Some(shared) = shared.upgrade() {
                    shared.tasks.end(task, Err(Failure::timed_out(timeout)));
                }
            };
            self.timer.after(timeout, Box::new(alarm))
        });
        let shared = Arc::downgrade(self);
        let watcher = move |outcome: &Outcome| {
            if let Some(shared) = shared.upgrade() {
                shared.tasks.end(task, outcome.clone());
            }
        };
        let launched = self.launch(function, arguments, peer, Box::new(watcher), peer.allocator(false));
        let lined_up = launched.and_then(|launched| {
            let Some(launched) = launched else { return Ok(()) };
            self.tasks.attach(task, &launched.flight, launched.watch, limit);
            if launched.is_new { self.line_up(&launched, None) } else { Ok(()) }
        });
        if let Err(error) = lined_up {
            self.tasks.discard(task);
            return Err(error);
        }
        Ok(task)
    }

    /// Tells `waiter` when a task has ended, or how far it is when the time is over.
    pub(super) fn wait(self: &Arc<Self>, task: u64, timeout: Option<Duration>, waiter: Waiter) {
        let Some(waiting) = self.tasks.wait(task, waiter) else { return };
        let Some(timeout) = timeout else { return };
        let shared = Arc::downgrade(self);
        let alarm = move || {
            if let Some((waiter, info)) = shared.upgrade().and_then(|shared| shared.tasks.stop_waiting(task, waiting)) {
                waiter(Ok(info));
            }
        };
        if let Some(limit) = self.timer.after(timeout, Box::new(alarm)) {
            self.tasks.keep_limit(task, waiting, limit);
        }
    }

    /// Lets go what is too old.
    pub(super) fn sweep(&self) {
        self.tasks.sweep();
        lock(&self.flights).retain(|_, flight| flight.strong_count() > 0);
        let now = self.clock.now();
        for function in self.functions.all() {
            let gone = function.run_options.results.as_ref().map(|results| lock(results).sweep(now));
            drop(gone);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the provider: nothing new is taken on, callers are told by the end of their sockets, runs are asked to stop.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // One that is lost is left to `registration::keep`, which tells the next daemon.
        if let Some(connection) = lock(&self.connection).take_if(|connection| !connection.has_ended()) {
            connection.close();
        }
        let peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        peers.iter().for_each(|peer| peer.end());
        self.tasks.close();
        self.pool.close();
        self.timer.close();
    }
}

/// A run, and the number under which it is watched.
pub(super) struct Launched {
    pub(super) flight: Arc<Flight>,
    pub(super) watch: u64,
    /// Whether nobody else has asked for it.
    pub(super) is_new: bool,
}

impl Launched {
    fn new(flight: Arc<Flight>, watcher: Watcher) -> Result<Self> {
        let given_up = |_| Error::new(ErrorKind::Conflict, "a new call was given up");
        let watch = flight.watch(watcher).map_err(given_up)?;
        Ok(Self { flight, watch, is_new: true })
    }
}
