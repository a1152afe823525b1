//! Short forms of the long runs. They check correctness, not time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::process::{Command, Stdio};

/// Performs a run and returns its outcome.
fn run(arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cotensor-soak"));
    let output = command.args(arguments.split(' ')).stderr(Stdio::inherit()).output().unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments}: {} {output_text}", output.status);
    serde_json::from_str(&output_text).unwrap()
}

#[test]
fn chaos_leaks_nothing_and_all_clients_recover() {
    let outcome =
        run("chaos --clients 8 --leases 800 --seconds 6 --client-kills 30 --daemon-kills 2 --supervisor-kills 2");
    let kills = ["client_kills", "daemon_kills", "supervisor_kills"].map(|of| outcome[of].as_u64());
    assert_eq!(kills, [30, 2, 2].map(Some));
    assert!(outcome["wrong"].as_array().unwrap().is_empty());
    // Each client that survived a kill of the daemon has reported its recovery.
    assert!(outcome["recovery"]["count"].as_u64().unwrap() >= 8, "{}", outcome["recovery"]);
    assert!(outcome["leases_max"].as_u64().unwrap() > 100);
    for used in ["blocks", "frames"] {
        assert!(outcome[used].as_u64().unwrap() > 0, "no {used} were used: {outcome}");
    }
    for process in ["server", "supervisor"] {
        let descriptors = |when: &str| outcome[when][process]["descriptors"].as_u64().unwrap();
        assert!(descriptors("after") <= descriptors("before"), "{outcome}");
    }
}

#[test]
fn cycles_do_not_grow_memory_or_descriptors() {
    // Leaked client names alone would be about a thousand.
    let run = run("cycles --cycles 20000 --samples 16 --bytes-max 2000000 --max-memory 10000000");
    assert!(run["evictions"].as_u64().unwrap() > 0, "the budget was never reached");
    assert!(run["refused"].as_u64().unwrap() < 200, "{}", run["refused"]);
    for process in ["server", "supervisor", "clients"] {
        let growth = &run["growth"][process];
        assert!(growth["descriptors"].as_i64().unwrap() <= 0, "{process} {growth}");
        assert!(growth["private_bytes"].as_i64().unwrap() < 8 << 20, "{process} {growth}");
        assert!(growth["mappings"].as_i64().unwrap() < 24, "{process} {growth}");
    }
}
