//! Sharing options of the daemon and of `run`.

use crate::support::{Daemon, Workspace};
use serde_json::json;
use std::fs;

#[test]
fn daemon_obeys_sharing_options() {
    let daemon = Daemon::start(&["--allowed-types", "text_embedding,other", "--max-shared-tensor-size", "1MiB"]);
    fs::write(daemon.path("small.bin"), [7; 8]).unwrap();
    fs::write(daemon.path("large.bin"), vec![7; (1 << 20) + 4]).unwrap();
    let put = |name: &'static str, shape: &'static str, kind: &'static str| {
        let file = if shape == "2" { "small.bin" } else { "large.bin" };
        ["put", name, file, "--dtype", "float32", "--shape", shape, "--kind", kind]
    };
    daemon.ok(&put("small", "2", "text_embedding"));
    daemon.ok(&put("plain", "2", "other"));
    daemon.ok(&put("weight", "262145", "weight"));
    daemon.expect_error(&put("wrong", "2", "audio_embedding"), 2, &["wrong", "audio_embedding", "kind not allowed"]);
    daemon.expect_error(&put("large", "262145", "other"), 2, &["large", "1.00 MiB", "larger than allowed"]);
    let stats = &daemon.json(&["stat"])["stats"];
    assert_eq!(stats["refused"], json!({"kind not allowed": 1, "larger than allowed": 1}));
    assert_eq!(stats["total_tensors"], 3);
}

#[test]
fn memory_budget_is_shown() {
    let daemon = Daemon::start(&["--max-memory", "64MiB"]);
    assert_eq!(daemon.json(&["stat"])["stats"]["max_memory_bytes"], 64 << 20);
    let text = String::from_utf8(daemon.ok(&["stat"])).unwrap();
    assert!(text.lines().any(|line| line.starts_with("memory budget") && line.ends_with("64.0 MiB")), "{text}");
    let top = String::from_utf8(daemon.ok(&["top"])).unwrap();
    assert!(top.contains("budget 64.0 MiB"), "{top}");
    assert_eq!(daemon.json(&["top"])["stats"]["max_memory_bytes"], 64 << 20);
}

#[test]
fn run_computes_unshared_kinds_privately() {
    let workspace = Workspace::with("bert");
    let run = ["run", "pipeline.toml", "--text", "The harbour wakes.", "--json"];
    let encoders = |options: &[&str]| {
        let report = workspace.json(&[&run[..], options].concat());
        let computed = |user: usize| report["users"][user]["stages"][0]["computed"].as_bool().unwrap();
        [computed(0), computed(1), computed(2)]
    };
    assert_eq!(encoders(&[]), [true, false, false]);
    assert_eq!(encoders(&["--disable-shared-tensors"]), [true; 3]);
    assert_eq!(encoders(&["--allowed-types", "vision_embedding,other"]), [true; 3]);
    assert_eq!(encoders(&["--allowed-types", "text_embedding"]), [true, false, false]);
    workspace
        .expect_error(&[&run[..], &["--allowed-types", "pictures"]].concat(), &["--allowed-types", "text_embedding"]);
    workspace
        .expect_error(&[&run[..], &["--daemon", "--disable-shared-tensors"]].concat(), &["--daemon", "cotensor serve"]);
}
