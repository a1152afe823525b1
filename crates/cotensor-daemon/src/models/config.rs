//! The configuration of the model process.

use cotensor_supervisor::Launch;
use std::time::Duration;

/// How the daemon starts the process that runs models.
#[derive(Clone, Debug)]
pub struct ModelsConfig {
    /// The program and its first arguments. The daemon adds `--socket SOCKET --json --v1 PATH`, and `--library PATH` for each library of the fast
    /// engine that clients named. The process serves HTTP/1.1 on
    /// a Unix socket at `PATH`, writes a line, or a JSON object, to its standard output when it is ready, and ends with its standard input or by SIGTERM.
    pub launch: Launch,
    /// The time in which it has to become ready.
    pub start_timeout: Duration,
    /// The time for which it may be stopped (SIGSTOP) before it is killed, rounded up to seconds. A process that a debugger traces
    /// does not count as stopped.
    pub stopped_timeout: Duration,
}

impl ModelsConfig {
    /// The configuration for a program, with 60 seconds for its start, and 15 seconds for which it may be stopped.
    pub fn new(launch: Launch) -> Self {
        Self { launch, start_timeout: Duration::from_secs(60), stopped_timeout: Duration::from_secs(15) }
    }
}
