use super::DaemonProgram;
use crate::settings::{IDLE_EXIT, configured};
use cotensor_core::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that a client started ends after this many seconds without clients and tensors, unless [`IDLE_EXIT`] is set.
const IDLE_EXIT_SECONDS: &str = "600";

/// Starts the daemon of one socket.
#[derive(Clone)]
pub(crate) struct Starter {
    pub(crate) program: DaemonProgram,
    pub(crate) socket: PathBuf,
}

impl Starter {
    /// Starts the daemon within `timeout`; does nothing if one answers.
    ///
    /// # Errors
    /// Those of [`DaemonProgram::start`] and [`serve_arguments`].
    pub(crate) fn start(&self, timeout: Duration) -> Result<()> {
        self.program.start(&self.socket, &serve_arguments(&self.socket)?, Path::new("/"), timeout)
    }
}

/// The arguments of a daemon that a client starts at `socket`.
///
/// # Errors
/// As [`ConfigFile::load`](crate::settings::ConfigFile::load).
pub fn serve_arguments(socket: &Path) -> Result<Vec<OsString>> {
    // The daemon's working directory is another one.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_path_buf());
    let mut arguments = vec!["serve".into(), "--detached".into(), "--json".into(), "--socket".into(), socket.into()];
    if configured(&IDLE_EXIT)?.is_none() {
        arguments.extend(["--idle-exit".into(), IDLE_EXIT_SECONDS.into()]);
    }
    Ok(arguments)
}
