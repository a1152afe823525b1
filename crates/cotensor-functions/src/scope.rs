//! `Scope`: the limits of a run, which its function passes on to the calls that it makes.

use cotensor_client::protocol::provider::RunRef;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Scope>>> = const { RefCell::new(None) };
}

/// The limits of a run: its deadline, its cancellation, and the runs that wait for it.
///
/// A call that a function makes ends at the deadline of the function's run at the latest, and is cancelled with it. This
/// holds on the thread of the run, and inside [`within`](Self::within) on others, until the run has ended.
pub struct Scope {
    run: RunRef,
    /// The runs that wait for this one, outermost first.
    callers: Vec<RunRef>,
    /// The end of the caller's time.
    deadline: Option<Instant>,
    /// The end of the function's own time, set when it starts.
    limit: OnceLock<Instant>,
    cancelled: AtomicBool,
    ended: AtomicBool,
}

impl Scope {
    pub(crate) fn new(run: RunRef, callers: Vec<RunRef>, deadline: Option<Instant>) -> Arc<Self> {
        let (limit, cancelled, ended) = (OnceLock::new(), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { run, callers, deadline, limit, cancelled, ended })
    }

    /// The scope of the calls that this thread makes. `None` outside of a run.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(|current| current.clone().filter(|scope| !scope.ended.load(Ordering::SeqCst)))
    }

    /// Runs `act` with `scope` for the calls that it makes on this thread.
    pub fn within<T>(scope: Option<Arc<Self>>, act: impl FnOnce() -> T) -> T {
        struct Restore(Option<Arc<Scope>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                let outer = self.0.take();
                drop(CURRENT.replace(outer));
            }
        }
        let _outer = Restore(CURRENT.replace(scope));
        act()
    }

    /// Whether the run was cancelled: no caller waits for its result.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// The time that is left to the run. `None` without a limit.
    pub fn time_left(&self) -> Option<Duration> {
        let end = self.deadline.into_iter().chain(self.limit.get().copied()).min();
        end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Starts the function's own time limit.
    pub(crate) fn limit_to(&self, timeout: Duration) {
        if let Some(end) = Instant::now().checked_add(timeout) {
            self.limit.get_or_init(|| end);
        }
    }

    /// Ends the scope with its run. Calls of threads that the function left behind are on their own.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn run(&self) -> RunRef {
        self.run
    }

    /// Whether a run waits for this one.
    pub(crate) fn is_awaited_by(&self, run: RunRef) -> bool {
        self.callers.contains(&run)
    }

    /// Whether a run of the same provider waits for this one.
    pub(crate) fn is_nested(&self) -> bool {
        self.callers.iter().any(|caller| caller.epoch == self.run.epoch)
    }

    /// The runs that wait for a call of this run.
    pub(crate) fn chain(&self) -> Vec<RunRef> {
        self.callers.iter().copied().chain([self.run]).collect()
    }
}
