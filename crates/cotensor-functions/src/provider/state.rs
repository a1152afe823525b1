//! The state that all threads of a provider share.

use super::caller_state::released;
use super::functions::Functions;
use super::group::{Group, References};
use super::peer::Peer;
use super::poller::Poller;
use super::runs::Runs;
use super::tasks::Tasks;
use super::timer::Timer;
use crate::{Limits, Object};
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_client::{ClientStore, OpenSession};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_memory::process::{has_room_for_message, random_bytes};
use cotensor_rpc::server::Registry;
use cotensor_rpc::{Connection, FrameBudget};
use cotensor_store::Clock;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

pub(super) struct ProviderState {
    pub(super) epoch: u64,
    /// The providers of this process that accept this provider's objects.
    pub(super) group: Arc<Group>,
    /// The number of references to objects so far: a reference's number is unique among all callers.
    references: AtomicU64,
    /// Whether the functions are used only while no other session provides some of their names.
    pub(super) is_standby: bool,
    pub(super) methods: Registry<Peer>,
    pub(super) limits: Limits,
    pub(super) functions: Functions,
    pub(super) tasks: Tasks,
    pub(super) runs: Arc<Runs>,
    pub(super) timer: Timer,
    pub(super) poller: Poller,
    /// Call threads that wait for the poller.
    pub(super) waiting_threads: AtomicUsize,
    /// Shared by the messages of all callers.
    pub(super) frames: Arc<FrameBudget>,
    /// The connection on which the functions are registered. `None` between two daemons.
    pub(super) connection: Mutex<Option<Arc<Connection>>>,
    /// The last session at the daemon, which the next session resumes.
    pub(super) session: Mutex<Option<OpenSession>>,
    store: RwLock<Arc<ClientStore>>,
    clock: Arc<dyn Clock>,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    next_peer: AtomicU64,
    closed: AtomicBool,
}

impl ProviderState {
    pub(super) fn new(
        methods: Registry<Peer>,
        store: Arc<ClientStore>,
        limits: Limits,
        clock: Arc<dyn Clock>,
        group: Option<Arc<Group>>,
        is_standby: bool,
    ) -> Result<Arc<Self>> {
        // JSON readers keep integers exact up to 2^53.
        let epoch = u64::from_le_bytes(random_bytes()?) >> 11;
        let (timer, group) = (Timer::default(), group.unwrap_or_else(|| Group::new(epoch)));
        let state = Arc::new(Self {
            epoch,
            group,
            is_standby,
            references: AtomicU64::new(0),
            methods,
            functions: Functions::default(),
            tasks: Tasks::new(Arc::clone(&clock), limits.task_ttl, limits.tasks_max),
            runs: Runs::new(&limits, timer.clone(), Arc::clone(&clock), epoch),
            timer,
            poller: Poller::new()?,
            waiting_threads: AtomicUsize::new(0),
            frames: FrameBudget::of_server(has_room_for_message),
            connection: Mutex::default(),
            session: Mutex::default(),
            store: RwLock::new(store),
            clock,
            peers: Mutex::default(),
            next_peer: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            limits,
        });
        let references = Arc::downgrade(&state);
        state.group.add(epoch, references);
        Ok(state)
    }

    /// The number of a new reference to an object.
    pub(super) fn next_reference(&self) -> u64 {
        self.references.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn store(&self) -> Arc<ClientStore> {
        Arc::clone(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the store for later callers, which belong to the next daemon.
    pub(super) fn replace_store(&self, store: Arc<ClientStore>) {
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = store;
    }

    pub(super) fn registration(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).clone()
    }

    /// Adds a caller. Closes its socket when there are too many.
    pub(super) fn add_peer(self: &Arc<Self>, client: &str, socket: UnixStream) {
        let number = self.next_peer.fetch_add(1, Ordering::Relaxed);
        let peer = Peer::new(Arc::clone(self), number, client, self.store(), socket);
        let mut peers = lock(&self.peers);
        if self.is_closed() || peers.len() >= self.limits.callers_max {
            return;
        }
        peers.insert(number, Arc::clone(&peer));
        drop(peers);
        if peer.listen().is_err() {
            self.remove_peer(&peer);
        }
    }

    pub(super) fn peer(&self, number: u64) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&number).cloned()
    }

    /// Ends a caller's connection and releases what the caller holds.
    pub(super) fn remove_peer(&self, peer: &Arc<Peer>) {
        peer.end();
        let removed = lock(&self.peers).remove(&peer.number);
        drop(removed);
    }

    pub(super) fn callers(&self) -> usize {
        lock(&self.peers).len()
    }

    /// Removes expired tasks and results, and gives idle memory of callers' arenas back.
    pub(super) fn sweep(&self) {
        self.tasks.sweep();
        self.runs.sweep();
        let now = self.clock.now();
        for function in self.functions.all() {
            let expired = function.run_options.cache.as_ref().map(|cache| lock(cache).sweep(now));
            drop(expired);
        }
        let peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        for peer in peers {
            peer.arena().give_back(Instant::now());
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the provider: refuses new calls, closes the connections of callers and cancels runs. Does not wait for
    /// running functions.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(connection) = lock(&self.connection).take() {
            connection.close();
        }
        let session = lock(&self.session).take();
        drop(session);
        let peers = std::mem::take(&mut *lock(&self.peers));
        peers.values().for_each(|peer| peer.end());
        self.tasks.close();
        self.runs.queue.close();
        self.timer.close();
        self.poller.wake_all();
    }
}

impl References for ProviderState {
    fn object_of(&self, client: &str, object: ObjectRef) -> Result<Object> {
        let mut peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        peers.retain(|peer| &*peer.client == client);
        let found = peers.iter().find_map(|peer| peer.state.object(object).ok());
        found.ok_or_else(|| released(object))
    }
}
