//! The state of a provider that its callers share. It does not know the callers.

use super::functions::Functions;
use super::group::Group;
use super::poller::Poller;
use super::runs::Runs;
use super::tasks::Tasks;
use super::timer::Timer;
use crate::Limits;
use cotensor_client::{ClientStore, OpenSession};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_core::sync::{read, write};
use cotensor_memory::process::{has_room_for_message, random_bytes};
use cotensor_rpc::server::CallCounts;
use cotensor_rpc::{Connection, FrameBudget};
use cotensor_store::Clock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

pub(super) struct ProviderState {
    pub(super) epoch: u64,
    /// The providers of this process that accept this provider's objects.
    pub(super) group: Arc<Group>,
    /// The number of references to objects so far: a reference's number is unique among all callers.
    references: AtomicU64,
    /// Whether the functions are used only while no other session provides some of their names.
    pub(super) is_standby: bool,
    /// Errors that callers got.
    pub(super) counts: CallCounts,
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
    closed: AtomicBool,
}

impl ProviderState {
    pub(super) fn new(
        store: Arc<ClientStore>,
        limits: Limits,
        clock: Arc<dyn Clock>,
        group: Option<Arc<Group>>,
        is_standby: bool,
    ) -> Result<Arc<Self>> {
        // JSON readers keep integers exact up to 2^53.
        let epoch = u64::from_le_bytes(random_bytes()?) >> 11;
        let (timer, group) = (Timer::default(), group.unwrap_or_else(|| Group::new(epoch)));
        Ok(Arc::new(Self {
            epoch,
            group,
            is_standby,
            references: AtomicU64::new(0),
            counts: CallCounts::default(),
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
            closed: AtomicBool::new(false),
            limits,
        }))
    }

    /// The number of a new reference to an object.
    pub(super) fn next_reference(&self) -> u64 {
        self.references.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn store(&self) -> Arc<ClientStore> {
        Arc::clone(&read(&self.store))
    }

    /// Replaces the store for later callers, which belong to the next daemon.
    pub(super) fn replace_store(&self, store: Arc<ClientStore>) {
        *write(&self.store) = store;
    }

    pub(super) fn registration(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).clone()
    }

    /// Removes expired tasks and results.
    pub(super) fn sweep(&self) {
        self.tasks.sweep();
        self.runs.sweep();
        let now = self.clock.now();
        for function in self.functions.all() {
            let expired = function.run_options.cache.as_ref().map(|cache| lock(cache).sweep(now));
            drop(expired);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the session at the daemon, and refuses callers from now on.
    pub(super) fn end_session(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(connection) = lock(&self.connection).take() {
            connection.close();
        }
        let session = lock(&self.session).take();
        drop(session);
    }

    /// Cancels runs and lets the threads end. Does not wait for running functions.
    pub(super) fn end_runs(&self) {
        self.tasks.close();
        self.runs.queue.close();
        self.timer.close();
        self.poller.wake_all();
    }
}
