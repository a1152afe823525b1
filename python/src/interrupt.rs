//! Waiting that Ctrl-C ends.

use crate::errors::raise;
use cotensor::Error;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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

/// Seconds as Python has them; none is no limit.
pub(crate) fn seconds(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let wrong = |_| raise(py, &Error::invalid("a number of seconds, not negative, is expected").in_field("timeout"));
    seconds.filter(|seconds| *seconds != f64::INFINITY).map(Duration::try_from_secs_f64).transpose().map_err(wrong)
}
