//! Ports, and daemons with options.

use crate::command;
use crate::errors::OrRaise;
use crate::settings::warn_of_unknown_keys;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for a daemon in the background to answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The HTTP port of this rank: 2537 + ``RANK``, or 2537 if ``GPUS_PER_NODE`` is set, because all ranks then share one
/// daemon.
#[pyfunction]
pub(crate) fn default_port(py: Python<'_>) -> PyResult<u16> {
    cotensor_client::default_port().or_raise(py)
}

/// The port that ``RANK`` names; ``None`` without that variable.
#[pyfunction]
pub(crate) fn port_of_rank(py: Python<'_>) -> PyResult<Option<u16>> {
    cotensor_client::port_of_rank().or_raise(py)
}

/// The socket at which the daemon is started if none answers: ``socket``, else ``COTENSOR_SOCKET`` or the configuration file's,
/// else that of ``port``, else the default one.
#[pyfunction]
#[pyo3(signature = (socket=None, port=None))]
pub(crate) fn own_socket(py: Python<'_>, socket: Option<PathBuf>, port: Option<u16>) -> PyResult<PathBuf> {
    warn_of_unknown_keys(py)?;
    cotensor_client::own_socket(socket.as_deref(), port).or_raise(py)
}

/// Starts a daemon in the background at ``socket`` with further arguments of ``cotensor serve``; does nothing if one answers.
#[pyfunction]
pub(crate) fn start_daemon(py: Python<'_>, socket: PathBuf, arguments: Vec<OsString>) -> PyResult<()> {
    let program = command::daemon(py)?;
    let started = || {
        let mut serve = cotensor_client::serve_arguments(&socket)?;
        serve.extend(arguments);
        program.start(&socket, &serve, Path::new("/"), START_TIMEOUT)
    };
    py.detach(started).or_raise(py)
}
