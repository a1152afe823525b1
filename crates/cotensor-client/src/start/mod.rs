//! Starting a daemon when none answers.

mod program;
mod starter;
mod starting;

pub use program::DaemonProgram;
pub(crate) use starter::Starter;
pub use starter::serve_arguments;
pub use starting::log_path;

use crate::settings::{AUTOSTART, configured};
use cotensor_core::Result;

/// Whether `COTENSOR_AUTOSTART`, else the configuration file, allows to start a daemon: not with `0`, `false`, `no` or `off`.
///
/// # Errors
/// As [`ConfigFile::load`](crate::settings::ConfigFile::load).
pub fn autostart_allowed() -> Result<bool> {
    let value = configured(&AUTOSTART)?.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    Ok(!matches!(value.trim(), "0" | "false" | "no" | "off"))
}
