//! Functions that run while the interpreter shuts down.
//!
//! Then a thread that attaches to Python blocks for ever, or Python ends it inside a call. Values on the stack of such
//! a thread must not be dropped.

use cotensor_functions::Failure;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often `stop_functions` checks whether functions still run.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

static STOPPING: AtomicBool = AtomicBool::new(false);
/// Threads that run Python code for a caller.
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

/// A thread's Python thread state, kept between calls. Making one for each call takes as long as a small function.
struct ThreadState {
    /// Whether this module made it.
    ours: bool,
}

impl ThreadState {
    fn new() -> Self {
        // SAFETY: the interpreter runs, by `Inside`. The thread leaves it as before, apart from its thread state.
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

impl Drop for ThreadState {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        // At shutdown the interpreter frees the thread states itself.
        if !self.ours || STOPPING.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the interpreter runs, by `Inside`. The two releases match the `Ensure` here and the one in `new`; the
        // last one frees the state.
        unsafe {
            ffi::PyGILState_Ensure();
            ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED);
            ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
        }
    }
}

thread_local! {
    static THREAD_STATE: ThreadState = ThreadState::new();
}

/// Blocks the thread when Python ends it, until the process exits.
struct BlockOnUnwind;

impl Drop for BlockOnUnwind {
    fn drop(&mut self) {
        // A panic unwinds as usual.
        while !std::thread::panicking() {
            std::thread::park();
        }
    }
}

/// Runs `act`. If Python ends the thread in it, the thread blocks until the process exits.
fn block_on_unwind<T>(act: impl FnOnce() -> T) -> T {
    let guard = BlockOnUnwind;
    let value = act();
    std::mem::forget(guard);
    value
}

unsafe extern "C-unwind" {
    /// As [`ffi::PyObject_Call`], with an ABI that lets Python end the thread inside. With the `"C"` ABI, an optimised
    /// build has no [`BlockOnUnwind`] here, and drops Python values of the frames below without the interpreter.
    #[allow(clashing_extern_declarations, reason = "the ABI differs on purpose")]
    fn PyObject_Call(
        callable: *mut ffi::PyObject,
        args: *mut ffi::PyObject,
        kwargs: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Calls a function in a new `contextvars.Context`. Variables that one call sets, such as decimal's precision, do not
/// reach the next call on the thread.
pub(super) fn call_in_new_context<'py>(
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
    // SAFETY: the three objects live until the call returns, and this thread is attached. The result is an owned
    // reference, or null with an exception. No Python value is dropped inside the closure.
    unsafe {
        let result = block_on_unwind(|| PyObject_Call(run.as_ptr(), all.as_ptr(), kwargs.as_ptr()));
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// Runs `act` attached to Python.
///
/// # Errors
/// `cancelled` after [`stop_functions`].
pub(super) fn with_python<T>(act: impl FnOnce(Python<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
    let _inside = Inside::enter();
    if STOPPING.load(Ordering::SeqCst) {
        return Err(Failure::new("cancelled", "the provider's process is shutting down"));
    }
    // While the thread ends there is none; `attach` makes a temporary one.
    let _ = THREAD_STATE.try_with(|_| ());
    Python::attach(|py| block_on_unwind(|| act(py)))
}

/// Stops new calls of functions, and waits for running ones for at most ``seconds``. Returns whether all have ended.
#[pyfunction]
pub(crate) fn stop_functions(py: Python<'_>, seconds: f64) -> bool {
    STOPPING.store(true, Ordering::SeqCst);
    let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        while INSIDE.load(Ordering::SeqCst) > 0 {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        true
    })
}

/// Resets the state in a forked child, which has none of its parent's threads.
#[pyfunction]
pub(crate) fn reset_functions() {
    INSIDE.store(0, Ordering::SeqCst);
    STOPPING.store(false, Ordering::SeqCst);
}
