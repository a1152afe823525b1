//! Settings of this process: its variables, and the user's configuration file.

use crate::errors::{OrRaise, raise};
use cotensor::Error;
use cotensor::core::parse_time;
use cotensor_client::settings::{self, CACHE, ConfigFile, Setting};
use cotensor_core::sync::lock;
use cotensor_memory::PackCache;
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The warnings that this process has given.
static GIVEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The value of a setting in its variable, else in the configuration file.
///
/// # Errors
/// As [`settings::configured`] and [`warn_of_unknown_keys`].
pub(crate) fn configured(py: Python<'_>, setting: &Setting) -> PyResult<Option<OsString>> {
    warn_of_unknown_keys(py)?;
    settings::configured(setting).or_raise(py)
}

/// As [`configured`], for a setting that is a number.
///
/// # Errors
/// `Invalid` for another value, with the variable's name.
pub(crate) fn configured_number(py: Python<'_>, setting: &Setting) -> PyResult<Option<usize>> {
    let Some(value) = configured(py, setting)? else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.trim().parse().ok());
    let wrong = || Error::invalid(format!("{} is not a count", value.to_string_lossy())).in_field(setting.variable);
    number.ok_or_else(|| raise(py, &wrong())).map(Some)
}

/// As [`configured`], for a setting that is a time.
///
/// # Errors
/// `Invalid` for another value, with the variable's name.
pub(crate) fn configured_time(py: Python<'_>, setting: &Setting) -> PyResult<Option<Duration>> {
    let Some(value) = configured(py, setting)? else { return Ok(None) };
    parse_time(&value.to_string_lossy()).map_err(|error| error.in_field(setting.variable)).or_raise(py).map(Some)
}

/// Warns about keys of the configuration file that belong to no setting, once for each file and key. For all that reads the file.
///
/// # Errors
/// A warning that a filter of Python turns into an exception. Errors of the file are those of the setting that is read.
pub(crate) fn warn_of_unknown_keys(py: Python<'_>) -> PyResult<()> {
    for warning in ConfigFile::inspect().0.warnings() {
        if lock(&GIVEN).insert(warning.clone()) {
            py.import("cotensor._warnings")?.call_method1("warn", (warning,))?;
        }
    }
    Ok(())
}

/// The user's cache folder: the one that `COTENSOR_CACHE` or the configuration file names, else the default one if it can be used.
///
/// # Errors
/// As [`PackCache::open`], for a named folder.
pub(crate) fn user_cache(py: Python<'_>) -> PyResult<Option<Arc<PackCache>>> {
    let named = configured(py, &CACHE)?.map(PathBuf::from);
    let folder = named.or_else(PackCache::usable_default_dir);
    folder.map(|folder| PackCache::open(&folder)).transpose().or_raise(py).map(|cache| cache.map(Arc::new))
}
