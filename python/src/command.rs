//! The command `cotensor`.

use cotensor_cli::{Launch, run_with};
use cotensor_client::DaemonProgram;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The arguments of an interpreter that make it the command.
fn command() -> Vec<OsString> {
    vec!["-m".into(), "cotensor".into()]
}

/// The program that [`Store.connect`](crate::store) starts as daemon: this interpreter with this package.
pub(crate) fn daemon(py: Python<'_>) -> PyResult<DaemonProgram> {
    Ok(DaemonProgram::new(interpreter(py)?, command()))
}

/// The interpreter of this process. A server that embeds Python has its own program as `sys.executable`.
fn interpreter(py: Python<'_>) -> PyResult<PathBuf> {
    let sys = py.import("sys")?;
    let executable: Option<PathBuf> = sys.getattr("executable")?.extract()?;
    let is_python = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("python") || name.contains("pypy")
    };
    if let Some(executable) = executable.clone().filter(|executable| is_python(executable)) {
        return Ok(executable);
    }
    let prefix: PathBuf = sys.getattr("prefix")?.extract()?;
    let beside = ["python3", "python"].map(|name| prefix.join("bin").join(name));
    Ok(beside.into_iter().find(|path| path.is_file()).or(executable).unwrap_or_else(|| "python3".into()))
}

/// Runs the ``cotensor`` command with these arguments, the program's name first, and returns its exit code.
///
/// It starts its child processes, such as the daemon's server, as ``python -m cotensor`` of this interpreter.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let interpreter = interpreter(py)?;
    // The command handles signals itself. Python's handler would only set a flag.
    let signal = py.import("signal")?;
    let default = signal.getattr("SIG_DFL")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, default))?;
    let launch = Launch::Command(interpreter, command());
    Ok(py.detach(|| run_with(arguments, launch)))
}
