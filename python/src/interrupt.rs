//! Waits that Ctrl-C interrupts, and time-outs.

use crate::errors::raise;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Checks Python's signal handlers during a wait, and keeps the exception that one raised.
#[derive(Default)]
pub(crate) struct SignalCheck {
    raised: Mutex<Option<PyErr>>,
}

impl SignalCheck {
    /// Runs the pending handlers. Returns whether none of them has raised so far. For the waiting thread, detached from Python.
    pub(crate) fn none_raised(&self) -> bool {
        if lock(&self.raised).is_some() {
            return false;
        }
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => true,
            Err(raised) => {
                *lock(&self.raised) = Some(raised);
                false
            }
        }
    }

    /// # Errors
    /// The exception that a handler raised.
    pub(crate) fn result(self) -> PyResult<()> {
        lock(&self.raised).take().map_or(Ok(()), Err)
    }
}

/// The first interval between two checks for signals; short, because most work is.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
/// The later intervals.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs uninterruptible work on another thread, and waits for its result until a signal handler raises. After that the
/// result is dropped. `work` gets a function that says whether the caller still waits.
///
/// # Errors
/// The handler's exception; `Io` when no thread can be started, `Engine` when the work panics.
pub(crate) fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> PyResult<T> {
    run_interruptible_within(py, name, None, work)
}

/// As [`run_interruptible`], for at most `timeout`.
///
/// # Errors
/// As [`run_interruptible`]; `TimedOut`.
pub(crate) fn run_interruptible_within<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    timeout: Option<Duration>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> PyResult<T> {
    run_checked(py, name, timeout, &|| py.check_signals(), work)
}

/// As [`run_interruptible`], also while `is_wanted`, a function of Python, gives true: signals reach the main thread only.
///
/// # Errors
/// As [`run_interruptible`]; `Conflict` for a result that is no longer wanted, and what `is_wanted` raises.
pub(crate) fn run_while_wanted<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    is_wanted: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> PyResult<T> {
    let check = || {
        py.check_signals()?;
        if is_wanted.map_or(Ok(true), |is_wanted| is_wanted.call0()?.is_truthy())? {
            Ok(())
        } else {
            Err(raise(py, &Error::new(ErrorKind::Conflict, "the result is no longer wanted")))
        }
    };
    run_checked(py, name, None, &check, work)
}

/// As [`run_interruptible_within`], until `check` fails in place of a signal handler.
fn run_checked<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    timeout: Option<Duration>,
    check: &dyn Fn() -> PyResult<()>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = channel();
    let interrupted = Arc::new(AtomicBool::new(false));
    let abandoned = Arc::clone(&interrupted);
    let run = move || drop(send.send(work(&|| !abandoned.load(Ordering::Relaxed))));
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| raise(py, &Error::io("starting a thread", &error)))?;
    let (receive, started) = (Mutex::new(receive), Instant::now());
    loop {
        let interval = if started.elapsed() < FIRST_INTERVAL { FIRST_INTERVAL } else { INTERVAL };
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let interval = left.map_or(interval, |left| interval.min(left));
        match py.detach(|| lock(&receive).recv_timeout(interval)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => {
                check().inspect_err(|_| interrupted.store(true, Ordering::Relaxed))?;
                if let Some(timeout) = timeout.filter(|timeout| started.elapsed() >= *timeout) {
                    interrupted.store(true, Ordering::Relaxed);
                    let message = format!("no result within {} s", timeout.as_secs_f64());
                    return Err(raise(py, &Error::new(ErrorKind::TimedOut, message)));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raise(
                    py,
                    &Error::new(ErrorKind::Engine, "the thread that ran the work ended without a result"),
                ));
            }
        }
    }
}

/// A time-out in seconds. `None` and infinity mean no limit.
///
/// # Errors
/// `Invalid` for a negative number or NaN.
pub(crate) fn seconds(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let invalid = |_| raise(py, &Error::invalid("pass a non-negative number of seconds").in_field("timeout"));
    seconds.filter(|seconds| *seconds != f64::INFINITY).map(Duration::try_from_secs_f64).transpose().map_err(invalid)
}
