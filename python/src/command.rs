//! The command `cotensor`.

use cotensor_cli::{Launch, run_with};
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the ``cotensor`` command with these arguments, the program's name first, and returns its exit code.
///
/// It starts its child processes, such as the daemon's server, as ``python -m cotensor`` of this interpreter.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let interpreter = py.import("sys")?.getattr("executable")?.extract()?;
    // The command handles signals itself. Python's handler would only set a flag.
    let signal = py.import("signal")?;
    let default = signal.getattr("SIG_DFL")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, default))?;
    let launch = Launch::Command(interpreter, vec!["-m".into(), "cotensor".into()]);
    Ok(py.detach(|| run_with(arguments, launch)))
}
