//! Models by name, and tasks without a pipeline.

use crate::support::{Daemon, Workspace, fixtures};
use cotensor_hub::testing::{Fault, HubServer};
use serde_json::Value;
use std::process::{Command, Output};

const NAME: &str = "owner/tiny-bert";
const TEXT: &str = "The harbour wakes.";

fn hub() -> HubServer {
    let server = HubServer::start();
    server.serve_folder(NAME, &fixtures().join("tiny/bert"));
    server
}

/// Lets a command use the network: this server.
fn with_hub(mut command: Command, server: &HubServer) -> Command {
    command.env("HF_ENDPOINT", server.address()).env_remove("HF_HUB_OFFLINE");
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

fn complaint(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.code() == Some(code) && output.stdout.is_empty() && !text.contains("panicked"), "{text}");
    text
}

#[test]
fn pulled_model_runs_by_its_name_without_the_network() {
    let (server, workspace) = (hub(), Workspace::with("bert"));
    let pull = || with_hub(workspace.command(&["pull", NAME, "--json"]), &server).output().unwrap();
    let pulled = pull();
    let progress = String::from_utf8_lossy(&pulled.stderr).into_owned();
    assert_eq!(
        progress.lines().filter(|line| *line == r#"{"notice":"downloading owner/tiny-bert"}"#).count(),
        1,
        "{progress}"
    );
    let first = json(&pulled);
    assert_eq!((&first["model"], &first["revision"]), (&Value::from(NAME), &Value::from("main")));
    assert_eq!(first["bytes"], first["bytes_received"]);
    assert_eq!(json(&pull())["bytes_received"], 0);
    let listed = workspace.json(&["models", "ls", "--json"]);
    let models = listed["models"].as_array().unwrap();
    assert_eq!((models.len(), &models[0]["name"], &models[0]["family"]), (1, &Value::from(NAME), &Value::from("bert")));
    assert_eq!((&models[0]["commit"], &models[0]["folder"]), (&first["commit"], &first["folder"]));
    assert!(models[0]["bytes"].as_u64() >= first["bytes"].as_u64());
    // A snapshot without graphs, as transformers leaves it.
    std::fs::remove_dir_all(std::path::Path::new(first["folder"].as_str().unwrap()).join("onnx")).unwrap();
    let table = String::from_utf8(workspace.run(&["models", "ls"]).stdout).unwrap();
    assert!(table.contains(NAME) && table.contains("cannot run"), "{table}");
    assert_eq!(json(&pull())["bytes_received"], 0, "the links are made again");
    let by_name = workspace.json(&["run", NAME, "--text", TEXT, "--json"]);
    let by_folder = workspace.json(&["run", "bert", "sentence-embedding", "--text", TEXT, "--json"]);
    let user = &by_name["users"][0];
    assert_eq!((user["model"].as_str(), user["task"].as_str()), (Some(NAME), Some("sentence-embedding")));
    assert_eq!(by_name["users"][0]["outputs"], by_folder["users"][0]["outputs"]);
    let words = workspace.run(&["pull", "owner/other"]);
    assert!(complaint(&words, 2).contains("HF_HUB_OFFLINE"));
    let words = workspace.run(&["pull", NAME, "--verify"]);
    assert!(String::from_utf8(words.stdout).unwrap().contains("(0 B downloaded)"), "verified without the network");
    let words = with_hub(workspace.command(&["pull", "owner/tiny-bert@v1", "--revision", "main"]), &server).output();
    assert!(String::from_utf8(words.unwrap().stdout).unwrap().contains("(0 B downloaded)"));
}

#[test]
fn damaged_model_is_an_error_until_it_is_pulled() {
    let (server, workspace) = (hub(), Workspace::with("bert"));
    let pull = |options: &[&str]| {
        with_hub(workspace.command(&[&["pull", NAME, "--json"], options].concat()), &server).output().unwrap()
    };
    let folder = json(&pull(&[]))["folder"].as_str().unwrap().to_owned();
    let weights = std::path::Path::new(&folder).join("onnx/model.onnx_data").canonicalize().unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    let run = ["run", NAME, "--text", TEXT, "--json"];
    let message = complaint(&workspace.run(&run), 2);
    assert!(message.contains("model.onnx_data") && message.contains("`cotensor pull owner/tiny-bert`"), "{message}");
    complaint(&workspace.run(&["pull", NAME, "--verify"]), 2);
    assert_eq!(json(&pull(&["--verify"]))["repaired"], serde_json::json!(["onnx/model.onnx_data"]));
    workspace.json(&run);
}

#[test]
fn name_in_a_pipeline_is_downloaded() {
    let (server, workspace) = (hub(), Workspace::with("bert"));
    let pipeline =
        std::fs::read_to_string(workspace.path("pipeline.toml")).unwrap().replace("\"bert\"", "\"owner/tiny-bert\"");
    std::fs::write(workspace.path("named.toml"), pipeline).unwrap();
    let run = |offline: bool, arguments: &[&str]| {
        let command = workspace.command(arguments);
        if offline { command } else { with_hub(command, &server) }.output().unwrap()
    };
    let arguments = ["run", "named.toml", "--text", TEXT, "--json"];
    let message = complaint(&run(true, &arguments), 2);
    assert!(message.contains("there is no folder owner/tiny-bert") && message.contains("HF_HUB_OFFLINE"), "{message}");
    assert_eq!(json(&run(false, &arguments))["users"].as_array().unwrap().len(), 3);
    assert_eq!(json(&run(true, &["explain", "named.toml", "--json"]))["stages"][0]["model"], NAME);
}

#[test]
fn failures_of_the_hub_are_not_bad_input() {
    let (server, workspace) = (hub(), Workspace::with("bert"));
    let pull = |name: &str| with_hub(workspace.command(&["pull", name]), &server).output().unwrap();
    assert!(complaint(&pull("owner/other"), 2).contains("no model owner/other"));
    assert!(complaint(&pull("./bert"), 2).contains("MODEL"));
    server.fail("/revision/", 0, Fault::Status(503, ""));
    assert!(complaint(&pull(NAME), 1).contains("503"));
    server.recover();
    server.fail("config.json", 0, Fault::Changed);
    assert!(complaint(&pull(NAME), 2).contains("another hash"));
}

#[test]
fn served_model_is_run_by_its_name() {
    let server = hub();
    let daemon = Daemon::start(&[]);
    let mut serving = with_hub(daemon.command(&["serve-models", "--threads", "1"]), &server).spawn().unwrap();
    let call = ["call", "--wait", "60", "model.run", "model=owner/tiny-bert", "task=sentence-embedding", "text=hello"];
    let result = daemon.run(&[&call[..], &["--output", "x.safetensors", "--json"]].concat());
    assert_eq!(json(&result)["result"]["answer"]["type"], "embedding");
    serving.kill().unwrap();
    serving.wait().unwrap();
}

#[test]
fn task_follows_from_the_inputs() {
    let photo = fixtures().join("media/photo.png");
    let speech = fixtures().join("media/speech.wav");
    for (family, arguments, task, answer) in [
        ("bert", vec!["--text", TEXT], "sentence-embedding", "embedding"),
        ("clip", vec!["--image", photo.to_str().unwrap()], "image-embedding", "embedding"),
        (
            "clip",
            vec!["--image", photo.to_str().unwrap(), "--text", "a cup", "--text", "a cat"],
            "zero-shot-image-classification",
            "ranking",
        ),
        ("whisper", vec!["--audio", speech.to_str().unwrap(), "--max-new-tokens", "3"], "transcription", "transcript"),
    ] {
        let workspace = Workspace::with(family);
        let report = workspace.json(&[&["run", family], &arguments[..], &["--json"]].concat());
        let user = &report["users"][0];
        assert_eq!((user["task"].as_str(), user["answer"]["type"].as_str()), (Some(task), Some(answer)), "{report}");
        let words = workspace.run(&[&["run", family, task], &arguments[..]].concat());
        let words = String::from_utf8(words.stdout).unwrap();
        assert!(words.starts_with(&format!("answer ({task} on {family}): ")), "{words}");
    }
}

#[test]
fn unclear_tasks_and_wrong_options_are_refused() {
    let workspace = Workspace::with("bert");
    workspace.expect_error(&["run", "bert"], &["TASK", "no input", "sentence-embedding (text)"]);
    workspace.expect_error(&["run", "bert", "--audio", "x.wav"], &["x.wav"]);
    let photo = fixtures().join("media/photo.png");
    workspace
        .expect_error(&["run", "bert", "--image", photo.to_str().unwrap()], &["meant by image", "sentence-embedding"]);
    workspace.expect_error(&["run", "bert", "transcription", "--text", "x"], &["TASK", "sentence-embedding"]);
    let ranked = ["run", "bert", "sentence-embedding", "--text", "x", "--text", "y"];
    workspace.expect_error(&ranked, &["reads one text"]);
    workspace.expect_error(&["run", "bert", "sentence-embedding", "--text", "x", "--head", "h"], &["has no head"]);
    for (option, value) in [("--head", "h"), ("--max-new-tokens", "5"), ("--min-new-tokens", "5"), ("--text", "again")]
    {
        let arguments = ["run", "pipeline.toml", "--text", "x", option, value];
        workspace.expect_error(&arguments, &[option, "pipeline"]);
    }
    workspace.expect_error(&["run", "pipeline.toml", "sentence-embedding", "--text", "x"], &["TASK"]);
    workspace.expect_error(&["run", "none.toml", "--text", "x"], &["none.toml"]);
    workspace.expect_error(&["run", "nowhere/bert", "--text", "x"], &["there is no folder nowhere/bert"]);
    workspace.expect_error(&["run", "./nowhere", "--text", "x"], &["./nowhere", "no such folder"]);
}
