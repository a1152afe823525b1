//! Functions of Python's that run when the interpreter ends.
//!
//! A thread that wants Python then never gets it. In a function that Python runs for us it is ended in its tracks, and what
//! it has on its stack must not be touched any more.

use cotensor_functions::Failure;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

static ENDING: AtomicBool = AtomicBool::new(false);
/// Threads that are with Python for a caller.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread's state of Python's, kept from one call to the next: to make one for each takes as long as a small function.
struct Kept {
    /// Not of a thread that Python has made.
    ours: bool,
}

impl Kept {
    fn new() -> Self {
        // SAFETY: the interpreter runs, by `Inside`; the thread leaves it as it found it, but for its state, which stays.
        unsafe {
            let ours = ffi::PyGILState_GetThisThreadState().is_null();
            if ours {
                ffi::PyGILState_Ensure();
                ffi::PyEval_SaveThread();
            }
            Self { ours }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        // At the interpreter's end its threads' states go with it.
        if !self.ours || ENDING.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the interpreter runs, by `Inside`. Two releases for the two times that this thread took it, here and in
        // `new`; the last frees the state.
        unsafe {
            ffi::PyGILState_Ensure();
            ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED);
            ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
        }
    }
}

thread_local! {
    static KEPT: Kept = Kept::new();
}

/// Dropped when the thread is ended under it, which then stays where it is until the process has ended.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        // A panic goes its way.
        while !std::thread::panicking() {
            std::thread::park();
        }
    }
}

/// Does something that may lose Python for ever.
pub(super) fn staying<T>(act: impl FnOnce() -> T) -> T {
    let stay = Stay;
    let value = act();
    std::mem::forget(stay);
    value
}

/// Calls a function with context variables of its own: what one call sets, decimal's precision or numpy's ways with errors, is no
/// other's, though it is on the same thread.
pub(super) fn call_afresh<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    static CONTEXT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class =
        CONTEXT.get_or_try_init(py, || Ok::<_, PyErr>(py.import("contextvars")?.getattr("Context")?.unbind()))?;
    let all = [function.clone()].into_iter().chain(args.iter());
    let run = class.bind(py).call0()?.getattr("run")?;
    let all = PyTuple::new(py, all.collect::<Vec<_>>())?;
    // Nothing of Python's may be dropped in there.
    staying(|| run.call(&all, Some(kwargs)))
}

/// Does something with Python for a caller, unless the interpreter is about to end.
pub(super) fn with_python<T>(act: impl FnOnce(Python<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
    let _inside = Inside::enter();
    if ENDING.load(Ordering::SeqCst) {
        return Err(Failure::new("cancelled", "this process is about to end"));
    }
    // Without one, where the thread is about to end, the next line makes one for itself.
    let _ = KEPT.try_with(|_| ());
    Python::attach(|py| staying(|| act(py)))
}

/// Lets no function begin any more, and waits for those that run, for at most so many seconds: whether none is left.
#[pyfunction]
pub(crate) fn end_functions(py: Python<'_>, seconds: f64) -> bool {
    ENDING.store(true, Ordering::SeqCst);
    let until = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        while INSIDE.load(Ordering::SeqCst) > 0 {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    })
}

/// In a forked child: its parent's threads are not here.
#[pyfunction]
pub(crate) fn begin_functions() {
    INSIDE.store(0, Ordering::SeqCst);
    ENDING.store(false, Ordering::SeqCst);
}
