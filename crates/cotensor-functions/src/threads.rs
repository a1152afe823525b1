//! Starting threads.

use cotensor_core::{Error, Result};

/// Starts a detached thread.
///
/// # Errors
/// `Io` when the system starts no more threads.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Error::io("starting a thread", &error))
}
