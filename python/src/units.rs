//! Sizes, rates and times as texts, read as the command line reads them.

use crate::errors::OrRaise;
use cotensor::core::{self, Result};
use pyo3::prelude::*;

fn of_field<T>(py: Python<'_>, parsed: Result<T>, field: &str) -> PyResult<T> {
    parsed.map_err(|error| error.in_field(field)).or_raise(py)
}

/// Bytes of a text such as "4GiB". `field` is the argument's name in errors.
#[pyfunction]
pub(crate) fn parse_size(py: Python<'_>, text: &str, field: &str) -> PyResult<u64> {
    of_field(py, core::parse_size(text), field)
}

/// Bytes per second of a text such as "12GB/s".
#[pyfunction]
pub(crate) fn parse_rate(py: Python<'_>, text: &str, field: &str) -> PyResult<u64> {
    of_field(py, core::parse_rate(text), field)
}

/// Seconds of a text such as "10min".
#[pyfunction]
pub(crate) fn parse_time(py: Python<'_>, text: &str, field: &str) -> PyResult<f64> {
    of_field(py, core::parse_time(text).map(|time| time.as_secs_f64()), field)
}
