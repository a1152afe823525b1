//! What this machine can do for the daemon: tried where it can be tried, read where it cannot, and why it matters.

mod daemon;
mod memory;
mod system;

use serde::Serialize;
use std::path::Path;

/// How good or bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, but slowly or not for long.
    Slow,
    /// Does not work.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How good it is.
    pub state: State,
    /// What was found.
    pub value: String,
    /// Why it matters, and what to do; empty where there is nothing to say.
    pub why: String,
}

impl Finding {
    fn new(name: &'static str, state: State, value: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name, state, value: value.into(), why: why.into() }
    }

    fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self::new(name, State::Ok, value, "")
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// In the order of looking.
    pub findings: Vec<Finding>,
    /// Whether something does not work.
    pub broken: bool,
}

/// Looks at the kernel, this process's limits, shared memory and the daemon at `socket`. Changes nothing; takes 64 MiB for
/// a moment.
pub fn diagnose(socket: &Path) -> Diagnosis {
    let mut findings = system::look();
    findings.extend(memory::look());
    findings.extend(daemon::look(socket));
    let broken = findings.iter().any(|finding| finding.state == State::Broken);
    Diagnosis { findings, broken }
}

/// A file of /proc or /sys, trimmed; `None` where there is none.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_daemon::{Config, Daemon, Listening};

    #[test]
    fn a_machine_that_runs_these_tests_is_not_broken() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let diagnosis = diagnose(&socket);
        let find = |name: &str| diagnosis.findings.iter().find(|finding| finding.name == name).unwrap().clone();
        assert!(!diagnosis.broken, "{:?}", diagnosis.findings);
        assert_eq!(find("sealed memory").state, State::Ok);
        assert_eq!((find("daemon").state, find("kernel").state), (State::Note, State::Ok));

        // Something that accepts and says nothing, and something that is no socket.
        std::fs::write(&socket, "").unwrap();
        assert!(diagnose(&socket).broken);
    }

    #[test]
    fn a_daemon_that_answers_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let daemon = Daemon::new(Config::default()).unwrap();
        let mut listening = Listening::bind(&socket).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            daemon.serve(&mut listening, async { drop(stopped.await) }).await.unwrap();
        });
        let found = daemon::look(&socket);
        drop(stop);
        runtime.block_on(serving).unwrap();
        let daemon = found.iter().find(|finding| finding.name == "daemon").unwrap();
        assert_eq!(daemon.state, State::Ok, "{daemon:?}");
        assert!(daemon.value.contains(env!("CARGO_PKG_VERSION")), "{daemon:?}");
    }
}
