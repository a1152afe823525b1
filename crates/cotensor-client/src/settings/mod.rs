//! Settings. An argument takes precedence over its `COTENSOR_*` variable, the variable over the configuration file, and the file
//! over the default.

mod edit;
mod file;
mod table;

pub use edit::change;
pub use file::{CONFIG_BYTES_MAX, ConfigFile, FileSetting, UnknownKey, config_path, of_key};
pub use table::*;

use cotensor_core::Result;
use std::ffi::OsString;

/// The value of a setting in its variable, else in the configuration file. An empty variable counts as not set.
///
/// # Errors
/// As [`ConfigFile::load`].
pub fn configured(setting: &Setting) -> Result<Option<OsString>> {
    match std::env::var_os(setting.variable).filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value)),
        None => Ok(ConfigFile::load()?.value(setting).map(OsString::from)),
    }
}
