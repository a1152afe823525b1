//! Waiting that Ctrl-C ends.

use crate::errors::raise;
use cotensor::{Error, ErrorKind};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Asks Python, between two looks, whether a signal's handler raised something.
#[derive(Default)]
pub(crate) struct Patience {
    raised: Mutex<Option<PyErr>>,
}

impl Patience {
    /// Whether to go on waiting. To be called by the thread that waits, without Python.
    pub(crate) fn goes_on(&self) -> bool {
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => true,
            Err(raised) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
                false
            }
        }
    }

    /// What the handler raised; to be raised in the caller's place.
    pub(crate) fn check(self) -> PyResult<()> {
        self.raised.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Has another thread do what cannot be interrupted, and waits for it as long as Ctrl-C allows. Then what it comes to is
/// dropped, and what it is given says that nobody wants it any more.
pub(crate) fn patiently<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let unwanted = Arc::clone(&given_up);
    let run = move || drop(send.send(work(&|| !unwanted.load(Ordering::Relaxed))));
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| raise(py, &Error::io("starting a thread", &error)))?;
    let (receive, started) = (Mutex::new(receive), Instant::now());
    loop {
        let look = Duration::from_millis(if started.elapsed() < Duration::from_millis(20) { 20 } else { 100 });
        match py.detach(|| receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(look)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| given_up.store(true, Ordering::Relaxed))?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raise(py, &Error::new(ErrorKind::Engine, "the thread that did it has ended")));
            }
        }
    }
}

/// Seconds as Python has them; none is no limit.
pub(crate) fn seconds(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let wrong = |_| raise(py, &Error::invalid("a number of seconds, not negative, is expected").in_field("timeout"));
    seconds.filter(|seconds| *seconds != f64::INFINITY).map(Duration::try_from_secs_f64).transpose().map_err(wrong)
}
