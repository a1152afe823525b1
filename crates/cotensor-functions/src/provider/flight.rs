//! One run of a function, and those who wait for it.

use crate::{Context, Failure, TensorAllocator, Value};
use cotensor_core::ContentHash;
use cotensor_store::TensorStore;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::functions::Function;
use cotensor_core::sync::lock;

/// What a run gives.
pub(super) type Outcome = Result<Arc<Value>, Failure>;
/// Who is told.
pub(super) type Watcher = Box<dyn FnOnce(&Outcome) + Send>;
/// What is run. Dropped as soon as nobody wants it: it holds the arguments.
pub(super) type Work = Box<dyn FnOnce(&Context) -> Result<Value, Failure> + Send>;

pub(super) struct Flight {
    pub(super) name: Arc<str>,
    pub(super) client: Arc<str>,
    /// The function, unless it is a method of an object.
    pub(super) function: Option<Arc<Function>>,
    /// What the call is by content, when equal calls matter.
    pub(super) key: Option<ContentHash>,
    allocator: TensorAllocator,
    cancelled: Arc<AtomicBool>,
    work: Mutex<Option<Work>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    started: bool,
    outcome: Option<Outcome>,
    next: u64,
    watchers: Vec<(u64, Watcher)>,
}

impl Flight {
    pub(super) fn new(
        name: Arc<str>,
        client: Arc<str>,
        function: Option<Arc<Function>>,
        key: Option<ContentHash>,
        allocator: TensorAllocator,
        work: Work,
    ) -> Arc<Self> {
        let (cancelled, work, state) = (Arc::default(), Mutex::new(Some(work)), Mutex::default());
        Arc::new(Self { name, client, function, key, allocator, cancelled, work, state })
    }

    /// Tells `watcher` the outcome, at once when it is there. Its number, to [`leave`](Self::leave) by.
    ///
    /// # Errors
    /// The watcher, when this run was given up: a new one is needed.
    pub(super) fn watch(&self, watcher: Watcher) -> Result<u64, Watcher> {
        let mut state = lock(&self.state);
        if self.cancelled.load(Ordering::SeqCst) {
            return Err(watcher);
        }
        if let Some(outcome) = state.outcome.clone() {
            drop(state);
            watcher(&outcome);
            return Ok(0);
        }
        state.next += 1;
        let number = state.next;
        state.watchers.push((number, watcher));
        Ok(number)
    }

    /// A watcher does not want the outcome any more. Without any, the run is given up.
    pub(super) fn leave(&self, number: u64) {
        let mut state = lock(&self.state);
        let before = state.watchers.len();
        let left = state.watchers.iter().position(|(known, _)| *known == number).map(|at| state.watchers.remove(at));
        let last = before == 1 && state.watchers.is_empty() && state.outcome.is_none();
        if last {
            self.cancelled.store(true, Ordering::SeqCst);
            state.outcome = Some(Err(Failure::cancelled()));
        }
        drop(state);
        drop(left);
        if last {
            drop(lock(&self.work).take());
        }
    }

    pub(super) fn is_started(&self) -> bool {
        lock(&self.state).started
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).outcome.is_some()
    }

    /// Ends the run with `outcome` unless it has ended; tells those who wait. Whether it did.
    pub(super) fn finish(&self, outcome: Outcome) -> bool {
        let mut state = lock(&self.state);
        if state.outcome.is_some() {
            return false;
        }
        state.outcome = Some(outcome.clone());
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        for (_, watcher) in watchers {
            watcher(&outcome);
        }
        true
    }

    /// Ends the run although it is not done, and asks it to stop.
    pub(super) fn give_up(&self, failure: Failure) {
        if self.finish(Err(failure)) {
            self.cancelled.store(true, Ordering::SeqCst);
            drop(lock(&self.work).take());
        }
    }

    /// Takes the run up; what to do, unless nobody wants it any more.
    pub(super) fn start(&self) -> Option<Work> {
        let work = lock(&self.work).take()?;
        lock(&self.state).started = true;
        Some(work)
    }

    /// Runs `work` on this thread.
    pub(super) fn run(&self, work: Work) -> Outcome {
        let context = Context {
            allocator: self.allocator.clone(),
            holder: self.allocator.store().holder(&self.name),
            function: Arc::clone(&self.name),
            client: Arc::clone(&self.client),
            cancelled: Arc::clone(&self.cancelled),
        };
        // What a panic leaves half done is the function's own.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&context)));
        match outcome {
            Ok(outcome) => outcome.map(Arc::new),
            Err(payload) => Err(Failure::panicked(&self.name, &*payload)),
        }
    }
}
