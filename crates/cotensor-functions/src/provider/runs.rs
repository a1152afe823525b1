//! The runs of a provider: shared by equal calls, queued, executed and limited in time.

use super::functions::Function;
use super::run::{Outcome, Run, RunOptions, Watcher};
use super::run_queue::RunQueue;
use super::timer::{TimeLimit, Timer};
use crate::{Arguments, Failure, Limits, Object, TensorAllocator};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, ErrorKind, Result};
use cotensor_store::Clock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

pub(super) struct Runs {
    pub(super) queue: RunQueue,
    pub(super) timer: Timer,
    clock: Arc<dyn Clock>,
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
    pub(super) fn new(limits: &Limits, timer: Timer, clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = RunQueue::new(limits.workers.max(1), limits.waiting_max);
        Arc::new(Self { queue, timer, clock, shared: Mutex::default() })
    }

    /// A run of a function: one that runs already for an equal call, or a new one. The tensors of its result come from
    /// `allocator`. `client` is the caller. `None` when the result was cached; `watcher` was called then.
    pub(super) fn join_or_create(
        &self,
        function: &Arc<Function>,
        arguments: Arguments,
        client: &Arc<str>,
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
        let (name, client) = (Arc::clone(&function.name), Arc::clone(client));
        let run = Run::new(name, client, function.run_options.clone(), key, allocator, work);
        let Some(key) = key.filter(|_| function.options.singleflight) else {
            return WatchedRun::new(run, watcher).map(Some);
        };
        let mut shared = lock(&self.shared);
        if let Some(running) = shared.get(&key).and_then(Weak::upgrade) {
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
        object: Object,
        method: String,
        arguments: Arguments,
        client: &Arc<str>,
        watcher: Watcher,
        allocator: TensorAllocator,
    ) -> Result<WatchedRun> {
        let name = Arc::from(format!("object.{method}"));
        let work = Box::new(move |context: &_| object.call(&method, &arguments, context));
        let run = Run::new(name, Arc::clone(client), RunOptions::default(), None, allocator, work);
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
