//! The state that all threads of a provider share.

use super::functions::Functions;
use super::peer::Peer;
use super::poller::Poller;
use super::runs::Runs;
use super::tasks::Tasks;
use super::timer::Timer;
use crate::Limits;
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
        is_standby: bool,
    ) -> Result<Arc<Self>> {
        let epoch = random_bytes()?;
        let timer = Timer::default();
        Ok(Arc::new(Self {
            // JSON readers keep integers exact up to 2^53.
            epoch: u64::from_le_bytes(epoch) >> 11,
            is_standby,
            methods,
            functions: Functions::default(),
            tasks: Tasks::new(Arc::clone(&clock), limits.task_ttl, limits.tasks_max),
            runs: Runs::new(&limits, timer.clone(), Arc::clone(&clock)),
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
        }))
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
