//! Models with the daemon's store: processes share weights and results.

use crate::support::{Daemon, copy, fixtures};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

const PIPELINE: &str = "[[user]]\nname = \"one\"\nmodel = \"bert\"\ntask = \"sentence-embedding\"\n";
const TEXT: &str = "The harbour wakes.";

fn daemon_with_bert() -> Daemon {
    let daemon = Daemon::start(&[]);
    copy(&fixtures().join("tiny/bert"), &daemon.path("bert"));
    fs::write(daemon.path("pipeline.toml"), PIPELINE).unwrap();
    daemon
}

/// A `serve-models` process, ended on drop.
struct Serving(Child);

impl Serving {
    fn start(daemon: &Daemon) -> Self {
        let mut command = daemon.command(&["serve-models", "--threads", "1", "--json"]);
        let mut child = command.env("RUST_BACKTRACE", "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut answer = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !answer.ends_with("}\n") {
            assert!(lines.read_line(&mut answer).unwrap() > 0, "the process ended: {answer}");
        }
        let started: Value = serde_json::from_str(&answer).unwrap();
        let functions = ["embed", "list", "load", "open", "run", "stage", "unload"].map(|name| format!("model.{name}"));
        let engine = &started["engine"];
        assert!(engine["name"].is_string() && engine["version"].is_string(), "{started}");
        assert_eq!(started, json!({"pid": child.id(), "engine": engine, "functions": functions}));
        Self(child)
    }

    fn end(mut self) {
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn computed(report: &Value) -> Vec<bool> {
    let stages = report["users"][0]["stages"].as_array().unwrap();
    stages.iter().map(|stage| stage["computed"].as_bool().unwrap()).collect()
}

#[test]
fn processes_share_weights_and_results() {
    let daemon = daemon_with_bert();
    let run = || daemon.json(&["run", "pipeline.toml", "--text", TEXT, "--daemon", "--threads", "1"]);
    let memory = || daemon.json(&["stat"])["stats"]["memory_usage_bytes"].as_u64().unwrap();
    let imported = || {
        let stats = daemon.json(&["stat"]);
        let copies = stats["stats"]["copies"].as_array().unwrap().iter();
        copies
            .filter(|copies| copies["reason"] == "file import")
            .map(|copies| copies["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let first = run();
    assert!(computed(&first).iter().all(|&computed| computed), "{first}");
    let (used, read) = (memory(), imported());
    assert!(used > 0 && read > 0);
    let second = run();
    assert!(computed(&second).iter().all(|&computed| !computed), "{second}");
    assert_eq!(first["users"][0]["answer"], second["users"][0]["answer"]);
    assert_eq!((memory(), imported()), (used, read), "weights are one copy, and read once");
    // Another input is a new computation with the same weights.
    let other =
        daemon.json(&["run", "pipeline.toml", "--text", "Something else.", "--daemon", "--threads", "1", "--compare"]);
    assert!(computed(&other)[0]);
    assert_eq!((imported(), &other["max_abs_diff"]), (read, &json!(0.0)));
    // Without --daemon, nothing is shared.
    let alone =
        daemon.command(&["run", "pipeline.toml", "--text", TEXT, "--json", "--cache", "cache"]).output().unwrap();
    assert!(computed(&serde_json::from_slice(&alone.stdout).unwrap())[0]);
    daemon.expect_error(
        &["run", "pipeline.toml", "--daemon", "--socket", "nowhere.sock"],
        1,
        &["nowhere.sock", "cotensor serve"],
    );
}

#[test]
fn concurrent_processes_compute_once() {
    let daemon = daemon_with_bert();
    let arguments = ["run", "pipeline.toml", "--text", TEXT, "--daemon", "--threads", "1", "--json"];
    let running: Vec<_> = (0..4)
        .map(|_| daemon.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
        .collect();
    let reports: Vec<Value> = running
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            serde_json::from_slice(&output.stdout).unwrap()
        })
        .collect();
    let ran = reports.iter().flat_map(computed).filter(|&computed| computed).count();
    assert_eq!(ran, computed(&reports[0]).len(), "each stage is computed by one process");
    assert!(reports.iter().all(|report| report["users"][0]["answer"] == reports[0]["users"][0]["answer"]));
}

#[test]
fn served_model_is_run_by_other_processes() {
    let daemon = daemon_with_bert();
    daemon.expect_error(&["call", "model.run"], 2, &["not found"]);
    // The call starts before the function is offered.
    let waits = ["call", "--wait", "60", "model.stage", "model=bert", "role=encoder"];
    let waiting = daemon.command(&waits).stderr(Stdio::piped()).spawn().unwrap();
    let serving = Serving::start(&daemon);
    let output = waiting.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("absolute"), "{output:?}");
    let folder = daemon.path("bert").canonicalize().unwrap();
    let (model, text) = (format!("model={}", folder.display()), format!("text={TEXT}"));
    let call = ["call", "model.run", &model, "task=sentence-embedding", &text];
    let stage = |report: &Value| report["result"]["stages"][0]["computed"].as_bool().unwrap();
    let first = daemon.json(&[&call[..], &["--output", "first.safetensors"]].concat());
    let second = daemon.json(&[&call[..], &["--output", "second.safetensors"]].concat());
    assert_eq!((stage(&first), stage(&second)), (true, false));
    assert_eq!(first["result"]["answer"]["type"], "embedding");
    assert_eq!(
        fs::read(daemon.path("first.safetensors")).unwrap(),
        fs::read(daemon.path("second.safetensors")).unwrap()
    );
    // A format with one tensor: the model has run, and its result is written to another file.
    daemon.expect_error(&[&call[..], &["--output", "third.npy"]].concat(), 2, &["third.npy", "third.safetensors"]);
    assert!(!daemon.path("third.npy").exists());
    assert_eq!(
        fs::read(daemon.path("first.safetensors")).unwrap(),
        fs::read(daemon.path("third.safetensors")).unwrap()
    );
    // A process that runs the model itself reuses the result.
    let run = daemon.json(&["run", "pipeline.toml", "--text", TEXT, "--daemon", "--threads", "1"]);
    assert!(computed(&run).iter().all(|&computed| !computed), "{run}");
    daemon.expect_error(&["call", "model.run", "model=bert", "task=sentence-embedding"], 2, &["absolute"]);
    // Callers see no internals of the provider.
    let refused = daemon.run(&["call", "model.run", "model=bert", "task=sentence-embedding"]);
    assert_eq!(String::from_utf8_lossy(&refused.stderr).lines().count(), 1, "{refused:?}");
    daemon.expect_error(&["serve-models"], 2, &["model.", "provided by models["]);
    serving.end();
    daemon.expect_error(&["call", "model.run"], 2, &["not found"]);
}

/// The name of the client that provides `model.embed`.
fn provider(daemon: &Daemon) -> String {
    let listed = daemon.json(&["call", "--list", "model.embed"]);
    assert_eq!(listed["functions"].as_array().unwrap().len(), 1, "{listed}");
    listed["functions"][0]["provider"]["client"].as_str().unwrap().to_owned()
}

#[test]
fn models_of_a_user_take_the_place_of_the_daemons_own() {
    let daemon = daemon_with_bert();
    let embed = || daemon.ok(&["embed", daemon.path("bert").to_str().unwrap(), "gulls"]);
    embed();
    let own = provider(&daemon);
    let serving = Serving::start(&daemon);
    assert_eq!(provider(&daemon), format!("models[{}]", serving.0.id()));
    embed();
    assert!(daemon.json(&["models", "ps"])["pid"].is_null(), "the process is not the daemon's");
    serving.end();
    assert_eq!(provider(&daemon), own, "the daemon's process offers them again");
    embed();
}
