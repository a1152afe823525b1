//! Health checks: whether this system supports the daemon, and what slows it down. Features are tested where possible,
//! and read from /proc and /sys otherwise.

mod daemon;
mod finding;
mod gpu;
mod memory;
mod system;

pub use finding::{Diagnosis, Finding, Severity};
pub use gpu::{Role, hold, produce};

use cotensor_core::Result;
use cotensor_memory::CudaDriver;
use std::path::Path;
use std::process::Command;

/// Checks the kernel, this process's limits, shared memory, GPUs and the daemon at `socket`. Changes nothing; allocates 64
/// MiB temporarily, and 4 MiB of each GPU beside two contexts, which take hundreds of megabytes each. `command` gives the
/// command of a process for the check of a GPU.
pub fn diagnose(socket: &Path, command: impl Fn(Role<'_>) -> Result<Command>) -> Diagnosis {
    diagnosis(socket, || gpu::check(CudaDriver::open(), command))
}

fn diagnosis(socket: &Path, gpus: impl FnOnce() -> Vec<Finding>) -> Diagnosis {
    let mut findings = system::check();
    findings.extend(memory::check());
    findings.extend(gpus());
    findings.extend(daemon::check(socket));
    let broken = findings.iter().any(|finding| finding.severity == Severity::Broken);
    Diagnosis { findings, broken }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_daemon::{Config, Daemon, Listening};

    #[test]
    fn supported_system_passes_the_checks() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        // The tests of the module `gpu` check GPUs, whatever this machine has.
        let found = diagnosis(&socket, Vec::new);
        let find = |name: &str| found.findings.iter().find(|finding| finding.name == name).unwrap().clone();
        assert!(!found.broken, "{:?}", found.findings);
        assert_eq!(find("sealed memory").severity, Severity::Ok);
        assert_eq!((find("daemon").severity, find("kernel").severity), (Severity::Note, Severity::Ok));

        // A file that is not a socket.
        std::fs::write(&socket, "").unwrap();
        assert!(diagnosis(&socket, Vec::new).broken);
    }

    #[test]
    fn running_daemon_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let daemon = Daemon::new(Config::default()).unwrap();
        let mut listening = Listening::bind(&socket).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            daemon.serve(&mut listening, async { drop(stopped.await) }).await.unwrap();
        });
        let found = daemon::check(&socket);
        drop(stop);
        runtime.block_on(serving).unwrap();
        let daemon = found.iter().find(|finding| finding.name == "daemon").unwrap();
        assert_eq!(daemon.severity, Severity::Ok, "{daemon:?}");
        assert!(daemon.value.contains(env!("CARGO_PKG_VERSION")), "{daemon:?}");
    }
}
