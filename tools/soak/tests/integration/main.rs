//! The long runs, in short: what they would find, not how fast it is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::process::{Command, Stdio};

/// Makes a run and takes its outcome.
fn run(arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cotensor-soak"));
    let output = command.args(arguments.split(' ')).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments}: {} {said}", output.status);
    serde_json::from_str(&said).unwrap()
}

#[test]
fn clients_and_daemon_are_killed_at_random() {
    let outcome = run("chaos --clients 8 --leases 800 --seconds 6 --client-kills 30 --daemon-kills 2");
    assert_eq!((&outcome["client_kills"], &outcome["daemon_kills"]), (&30.into(), &2.into()));
    assert!(outcome["wrong"].as_array().unwrap().is_empty());
    // Each client that lived through a kill of the daemon said that it went on.
    assert!(outcome["recovery"]["count"].as_u64().unwrap() >= 8, "{}", outcome["recovery"]);
    assert!(outcome["leases_max"].as_u64().unwrap() > 100);
    for process in ["server", "keeper"] {
        let descriptors = |when: &str| outcome[when][process]["descriptors"].as_u64().unwrap();
        assert!(descriptors("after") <= descriptors("before"), "{outcome}");
    }
}

#[test]
fn nothing_grows_over_many_cycles() {
    // Names of clients and of their parts alone would be a thousand.
    let run = run("cycles --cycles 20000 --samples 16 --bytes-max 2000000 --max-memory 10000000");
    assert!(run["evictions"].as_u64().unwrap() > 0, "the budget was never reached");
    assert!(run["refused"].as_u64().unwrap() < 200, "{}", run["refused"]);
    for process in ["server", "keeper", "clients"] {
        let growth = &run["growth"][process];
        assert!(growth["descriptors"].as_i64().unwrap() <= 0, "{process} {growth}");
        assert!(growth["private_bytes"].as_i64().unwrap() < 8 << 20, "{process} {growth}");
        assert!(growth["mappings"].as_i64().unwrap() < 24, "{process} {growth}");
    }
}
