//! One run of a function, and the watchers of its outcome.

use super::result_cache::ResultCache;
use crate::{Context, Failure, Scope, TensorAllocator, Value};
use cotensor_client::protocol::provider::RunRef;
use cotensor_core::ContentHash;
use cotensor_core::sync::lock;
use cotensor_store::TensorStore;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The outcome of a run.
pub(super) type Outcome = Result<Arc<Value>, Failure>;
/// Called with the outcome of a run.
pub(super) type Watcher = Box<dyn FnOnce(&Outcome) + Send>;
/// The call of the function. Holds the arguments; dropped when the run ends or is cancelled.
pub(super) type Work = Box<dyn FnOnce(&Context) -> Result<Value, Failure> + Send>;

/// Runs that wait for a function with [`Concurrency::Serialized`](crate::Concurrency::Serialized).
#[derive(Default)]
pub(super) struct SerialQueue {
    /// The run of the function that is ready or running.
    pub(super) running: Option<RunRef>,
    pub(super) waiting: VecDeque<Arc<Run>>,
}

/// The options of a function that apply to its runs.
#[derive(Clone, Default)]
pub(super) struct RunOptions {
    /// Set when the function runs one call at a time.
    pub(super) serial: Option<Arc<Mutex<SerialQueue>>>,
    /// Set when the function's results are cached.
    pub(super) cache: Option<Arc<Mutex<ResultCache>>>,
    /// The time limit of one run.
    pub(super) timeout: Option<Duration>,
}

/// One run of a function or a method.
pub(super) struct Run {
    pub(super) name: Arc<str>,
    pub(super) client: Arc<str>,
    pub(super) options: RunOptions,
    /// The content hash of the call, for functions that share runs or cache results.
    pub(super) key: Option<ContentHash>,
    pub(super) scope: Arc<Scope>,
    /// Whether the run runs in addition to those of the workers.
    pub(super) is_extra: AtomicBool,
    allocator: TensorAllocator,
    work: Mutex<Option<Work>>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    started: bool,
    outcome: Option<Outcome>,
    next: u64,
    watchers: Vec<(u64, Watcher)>,
}

impl Run {
    pub(super) fn new(
        name: Arc<str>,
        client: Arc<str>,
        options: RunOptions,
        key: Option<ContentHash>,
        scope: Arc<Scope>,
        allocator: TensorAllocator,
        work: Work,
    ) -> Arc<Self> {
        let (is_extra, work, progress) = (AtomicBool::new(false), Mutex::new(Some(work)), Mutex::default());
        Arc::new(Self { name, client, options, key, scope, is_extra, allocator, work, progress })
    }

    /// Calls `watcher` with the outcome, at once when the run has ended. Returns the watcher's number for
    /// [`leave`](Self::leave).
    ///
    /// # Errors
    /// The watcher, when this run was cancelled: the call needs a new run.
    pub(super) fn watch(&self, watcher: Watcher) -> Result<u64, Watcher> {
        let mut progress = lock(&self.progress);
        if self.scope.is_cancelled() {
            return Err(watcher);
        }
        if let Some(outcome) = progress.outcome.clone() {
            drop(progress);
            watcher(&outcome);
            return Ok(0);
        }
        progress.next += 1;
        let number = progress.next;
        progress.watchers.push((number, watcher));
        Ok(number)
    }

    /// Removes a watcher. Cancels the run when no watcher is left.
    pub(super) fn leave(&self, number: u64) {
        let mut progress = lock(&self.progress);
        let before = progress.watchers.len();
        let left =
            progress.watchers.iter().position(|(known, _)| *known == number).map(|at| progress.watchers.remove(at));
        let last = before == 1 && progress.watchers.is_empty() && progress.outcome.is_none();
        if last {
            self.scope.cancel();
            progress.outcome = Some(Err(Failure::cancelled()));
        }
        drop(progress);
        drop(left);
        if last {
            drop(lock(&self.work).take());
        }
    }

    pub(super) fn is_started(&self) -> bool {
        lock(&self.progress).started
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.progress).outcome.is_some()
    }

    /// Ends the run with `outcome` and calls the watchers. Returns false when the run had ended before.
    pub(super) fn finish(&self, outcome: Outcome) -> bool {
        let mut progress = lock(&self.progress);
        if progress.outcome.is_some() {
            return false;
        }
        progress.outcome = Some(outcome.clone());
        let watchers = std::mem::take(&mut progress.watchers);
        drop(progress);
        for (_, watcher) in watchers {
            watcher(&outcome);
        }
        true
    }

    /// Ends the run with `failure` and cancels it.
    pub(super) fn abort(&self, failure: Failure) {
        if self.finish(Err(failure)) {
            self.scope.cancel();
            drop(lock(&self.work).take());
        }
    }

    /// Marks the run as started and takes its work. `None` when the run was cancelled.
    pub(super) fn start(&self) -> Option<Work> {
        let work = lock(&self.work).take()?;
        lock(&self.progress).started = true;
        Some(work)
    }

    /// Runs `work` on this thread.
    pub(super) fn execute(&self, work: Work) -> Outcome {
        let context = Context {
            allocator: self.allocator.clone(),
            holder: self.allocator.store().holder(&self.name),
            function: Arc::clone(&self.name),
            client: Arc::clone(&self.client),
            scope: Arc::clone(&self.scope),
        };
        // Unwind safety is the function's responsibility.
        let run = || Scope::within(Some(Arc::clone(&self.scope)), || work(&context));
        let outcome = catch_unwind(AssertUnwindSafe(run));
        self.scope.end();
        match outcome {
            Ok(outcome) => outcome.map(Arc::new),
            Err(payload) => Err(Failure::panicked(&self.name, &*payload)),
        }
    }
}
