//! Arguments of methods. A wrong type raises `InvalidError` with the argument's name.

use crate::errors::{OrRaise, raise};
use cotensor::{Error, ErrorKind};
use pyo3::IntoPyObjectExt;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDelta, PyDict, PyTuple};
use serde_json::{Map, Number, Value as Json};
use std::time::Duration;

/// The longest `repr` that an error quotes.
const QUOTED_CHARS_MAX: usize = 40;

fn convert<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>, name: &str, expected: &str) -> PyResult<T> {
    value.extract().map_err(|_| {
        let found = match value.repr() {
            Ok(text) if text.len().is_ok_and(|chars| chars <= QUOTED_CHARS_MAX) => text.to_string(),
            _ => value.get_type().to_string(),
        };
        raise(value.py(), &Error::invalid(format!("pass {expected}, not {found}")).in_field(name))
    })
}

/// Defines one function per argument, for `#[pyo3(from_py_with = …)]`.
macro_rules! arguments {
    ($($expected:literal: $($function:ident $($name:literal)?),*;)*) => {
        $($(
            pub(crate) fn $function<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
                // The literal is the argument's name if the function has another one.
                convert(value, [$($name,)? stringify!($function)][0], $expected)
            }
        )*)*
    };
}

/// How long a tensor stays without holders: the argument `keep` of new tensors.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    /// Until it is removed or evicted, or not at all.
    Always(bool),
    /// For this time at most.
    For(Duration),
}

impl Kept {
    /// The argument's default.
    pub(crate) const DEFAULT: Self = Self::Always(true);
}

/// True or False, a number of seconds, or a `datetime.timedelta`.
pub(crate) fn kept(value: &Bound<'_, PyAny>) -> PyResult<Kept> {
    const NAME: &str = "keep";
    const EXPECTED: &str = "True, False, or the time without holders: seconds above 0, or a timedelta";
    if let Ok(keep) = value.extract::<bool>() {
        return Ok(Kept::Always(keep));
    }
    let time = match value.cast::<PyDelta>() {
        Ok(delta) => delta.extract::<Duration>().ok(),
        Err(_) => Duration::try_from_secs_f64(convert(value, NAME, EXPECTED)?).ok(),
    };
    let wrong = || raise(value.py(), &Error::invalid(format!("pass {EXPECTED}")).in_field(NAME));
    time.filter(|time| !time.is_zero()).map(Kept::For).ok_or_else(wrong)
}

arguments! {
    "a string": name, holder, kind, producer, provenance, key, client, producer_model, model_name, tensor_name,
        prefix, view_name, model_type, task, text_task, user, text, dtype, device, engine, precision, model, policy,
        variant;
    "True or False": keep, from_device, sealed, enable_shared_tensors, verbose, missing_ok, existing, every, mixed_precision,
        enable_kv_cache, extended_context;
    "a number of seconds": recompute_seconds, timeout;
    "a non-negative number of bytes": offset, bytes_max;
    "a non-negative integer": max_memory_mb, max_shared_tensor_size, nbytes, count, max_connections, threads,
        sample_rate, slots, readers, holds, versions_max, precision_bits;
    "a number": window;
    "a list of strings": allowed_types, consumer_models, priority_list, texts, names;
    "a list of non-negative integers": offsets "offset", size, shape, strides;
    "a path": socket, cache, models;
    "a list of texts, or a path": calibration;
    "a pair of integers": id;
    "the handle of a stream, such as torch.cuda.current_stream().cuda_stream": stream;
    "a Store": store;
}

/// Options by name, as JSON has them.
///
/// # Errors
/// `Invalid` for a value that is neither text, a number, a truth value, `None` nor a list of them.
pub(crate) fn options(given: &Bound<'_, PyDict>) -> PyResult<Map<String, Json>> {
    let option = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = convert(&name, "options", "names of options")?;
        if let Some(value) = json(&value) {
            return Ok((name, value));
        }
        let values: Vec<Bound<'_, PyAny>> =
            convert(&value, &name, "text, a number, True or False, or a list of texts")?;
        let value = |each| json(each).map_or_else(|| convert::<String>(each, &name, "a text").map(Json::from), Ok);
        let values = values.iter().map(value).collect::<PyResult<_>>()?;
        Ok((name, Json::Array(values)))
    };
    given.iter().map(option).collect()
}

/// Text, a number, a truth value or `None` as JSON. Numbers of numpy are numbers.
fn json(value: &Bound<'_, PyAny>) -> Option<Json> {
    if value.is_none() {
        return Some(Json::Null);
    }
    let text = || value.extract::<String>().ok().map(Json::from);
    let integer = || value.extract::<i64>().ok().map(Json::from);
    let large = || value.extract::<u64>().ok().map(Json::from);
    let number = || value.extract::<f64>().ok().and_then(Number::from_f64).map(Json::Number);
    let truth = value.extract::<bool>().ok().map(Json::from);
    truth.or_else(text).or_else(integer).or_else(large).or_else(number)
}

/// # Errors
/// `TypeError` for more than one default.
pub(crate) fn check_default(default: &Bound<'_, PyTuple>) -> PyResult<()> {
    if default.len() > 1 { Err(PyTypeError::new_err("pass at most one default")) } else { Ok(()) }
}

/// The value, or, if there is none of its name, the first of `default`.
///
/// # Errors
/// The error of `found` without a default.
pub(crate) fn or_default<'py>(
    py: Python<'py>,
    found: Result<impl IntoPyObjectExt<'py>, Error>,
    default: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    match (found, default.get_item(0)) {
        (Err(error), Ok(default)) if error.kind() == ErrorKind::NotFound => Ok(default),
        (found, _) => found.or_raise(py)?.into_bound_py_any(py),
    }
}
