//! The runs of a provider: shared by equal calls, queued, executed and limited in time.

use super::functions::Function;
use super::run::{Outcome, Run, RunOptions, Watcher};
use super::run_queue::RunQueue;
use super::timer::{TimeLimit, Timer};
use crate::{Arguments, Failure, Limits, Object, Scope, TensorAllocator};
use cotensor_client::protocol::provider::RunRef;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, ErrorKind, Result};
use cotensor_store::Clock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The most runs that may wait for one another. More are a recursion without an end.
const DEPTH_MAX: usize = 128;

/// The call that a run is for.
pub(super) struct Origin {
    /// The caller.
    client: Arc<str>,
    deadline: Option<Instant>,
    /// The runs that wait for the call, outermost first.
    waiting: Vec<RunRef>,
}

impl Origin {
    /// # Errors
    /// `Invalid` for a call that too many runs wait for.
    pub(super) fn new(client: &Arc<str>, timeout_ms: Option<u64>, waiting: Vec<RunRef>) -> Result<Self> {
        if waiting.len() > DEPTH_MAX {
            return Err(Error::invalid(format!("more than {DEPTH_MAX} calls wait for one another")));
        }
        let deadline = timeout_ms.and_then(|timeout| Instant::now().checked_add(Duration::from_millis(timeout)));
        Ok(Self { client: Arc::clone(client), deadline, waiting })
    }
}

pub(super) struct Runs {
    pub(super) queue: RunQueue,
    pub(super) timer: Timer,
    clock: Arc<dyn Clock>,
    epoch: u64,
    /// The number of runs so far.
    count: AtomicU64,
    /// Runs that equal calls may join.
    shared: Mutex<HashMap<ContentHash, Weak<Run>>>,
}

/// A run, and the number of a watcher of its outcome.
pub(super) struct WatchedRun {
    pub(super) run: Arc<Run>,
    pub(super) watcher: u64,
    /// Whether the run is new, and must be [queued](Runs::push).
    pub(super) is_new: bool,
}

impl WatchedRun {
    fn new(run: Arc<Run>, watcher: Watcher) -> Result<Self> {
        let cancelled = |_| Error::new(ErrorKind::Conflict, "a new run was cancelled");
        let watcher = run.watch(watcher).map_err(cancelled)?;
        Ok(Self { run, watcher, is_new: true })
    }
}

impl Runs {
    pub(super) fn new(limits: &Limits, timer: Timer, clock: Arc<dyn Clock>, epoch: u64) -> Arc<Self> {
        let queue = RunQueue::new(limits.workers.max(1), limits.waiting_max);
        Arc::new(Self { queue, timer, clock, epoch, count: AtomicU64::new(0), shared: Mutex::default() })
    }

    /// The scope of a new run. A run that others may join has no deadline: their calls may have later ones, and the run is
    /// cancelled when the last of them times out.
    fn scope(&self, origin: Origin, is_shared: bool) -> Arc<Scope> {
        let run = RunRef { epoch: self.epoch, run: self.count.fetch_add(1, Ordering::Relaxed) };
        Scope::new(run, origin.waiting, origin.deadline.filter(|_| !is_shared))
    }

    /// A run of a function: one that runs already for an equal call, or a new one. The tensors of its result come from
    /// `allocator`. `None` when the result was cached; `watcher` was called then.
    ///
    /// # Errors
    /// `Conflict` for a call that would wait for its own end.
    pub(super) fn join_or_create(
        &self,
        function: &Arc<Function>,
        arguments: Arguments,
        origin: Origin,
        mut watcher: Watcher,
        allocator: TensorAllocator,
    ) -> Result<Option<WatchedRun>> {
        let key = function.key(&arguments);
        let cached = || Some(lock(function.run_options.cache.as_ref()?).get(key.as_ref()?, self.clock.now())).flatten();
        if let Some(value) = cached() {
            watcher(&Ok(value));
            return Ok(None);
        }
        let work = {
            let function = Arc::clone(function);
            Box::new(move |context: &_| function.call(&arguments, context))
        };
        let (name, client) = (Arc::clone(&function.name), Arc::clone(&origin.client));
        let shared_key = key.filter(|_| function.options.singleflight);
        let scope = self.scope(origin, shared_key.is_some());
        let run = Run::new(name, client, function.run_options.clone(), key, scope, allocator, work);
        let Some(key) = shared_key else {
            return WatchedRun::new(run, watcher).map(Some);
        };
        let mut shared = lock(&self.shared);
        if let Some(running) = shared.get(&key).and_then(Weak::upgrade) {
            if run.scope.is_awaited_by(running.scope.run()) {
                let message = format!("{} calls itself with equal arguments, and waits for its own end", run.name);
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            match running.watch(watcher) {
                Ok(watcher) => return Ok(Some(WatchedRun { run: running, watcher, is_new: false })),
                // The run was cancelled. The new run replaces it.
                Err(back) => watcher = back,
            }
        }
        // A run that ended since the first look-up has cached its result.
        if let Some(value) = cached() {
            drop(shared);
            watcher(&Ok(value));
            return Ok(None);
        }
        let watched = WatchedRun::new(run, watcher)?;
        shared.insert(key, Arc::downgrade(&watched.run));
        Ok(Some(watched))
    }

    /// A run of a method of an object.
    pub(super) fn create_for_method(
        &self,
        object: Object,
        method: String,
        arguments: Arguments,
        origin: Origin,
        watcher: Watcher,
        allocator: TensorAllocator,
    ) -> Result<WatchedRun> {
        let name = Arc::from(format!("object.{method}"));
        let work = Box::new(move |context: &_| object.call(&method, &arguments, context));
        let client = Arc::clone(&origin.client);
        let scope = self.scope(origin, false);
        let run = Run::new(name, client, RunOptions::default(), None, scope, allocator, work);
        WatchedRun::new(run, watcher)
    }

    /// Queues a new run.
    ///
    /// # Errors
    /// As [`RunQueue::push`].
    pub(super) fn push(&self, WatchedRun { run, watcher, .. }: &WatchedRun) -> Result<()> {
        self.queue.push(run).inspect_err(|error| {
            self.unshare(run);
            run.leave(*watcher);
            // Other callers may have joined the run meanwhile.
            run.abort(Failure::from(error.clone()));
        })
    }

    /// Executes a run on this thread, unless it was cancelled.
    pub(super) fn execute(self: &Arc<Self>, run: &Arc<Run>) {
        let Some(work) = run.start() else { return self.unshare(run) };
        let limit = self.limit(run);
        let outcome = run.execute(work);
        drop(limit);
        self.complete(run, outcome);
    }

    fn complete(&self, run: &Arc<Run>, outcome: Outcome) {
        if let (Ok(value), Some(key), Some(cache)) = (&outcome, run.key, &run.options.cache) {
            let evicted = lock(cache).insert(key, Arc::clone(value), self.clock.now());
            drop(evicted);
        }
        // After the result is cached: an equal call finds one of the two.
        self.unshare(run);
        run.finish(outcome);
    }

    /// Lets no further call join the run.
    fn unshare(&self, run: &Arc<Run>) {
        let Some(key) = &run.key else { return };
        let mut shared = lock(&self.shared);
        if shared.get(key).is_some_and(|known| known.as_ptr() == Arc::as_ptr(run)) {
            shared.remove(key);
        }
    }

    /// Starts the time limit of a run.
    fn limit(self: &Arc<Self>, run: &Arc<Run>) -> Option<TimeLimit> {
        let timeout = run.options.timeout?;
        run.scope.limit_to(timeout);
        let (runs, run) = (Arc::downgrade(self), Arc::clone(run));
        let callback = move || {
            if let Some(runs) = runs.upgrade() {
                runs.unshare(&run);
            }
            run.abort(Failure::timed_out(timeout));
        };
        self.timer.after(timeout, Box::new(callback))
    }

    /// Removes the entries of runs that were dropped.
    pub(super) fn sweep(&self) {
        lock(&self.shared).retain(|_, run| run.strong_count() > 0);
    }
}
