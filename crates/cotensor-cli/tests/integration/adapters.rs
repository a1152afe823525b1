//! Adapters between the encoders of two models.

use crate::support::{BERT, Daemon, Workspace};
use std::fs;
use std::process::Output;

/// A workspace with a second BERT, whose encoder has another weight, and sentences.
fn workspace() -> Workspace {
    let workspace = Workspace::with("bert");
    workspace.add_other_bert();
    let words = ["harbour", "city", "wakes", "before", "ship", "morning", "light", "gulls"];
    let line = |index: usize| format!("{} {} {index}\n", words[index % 8], words[(index * 3 + index / 8) % 8]);
    fs::write(workspace.path("texts.txt"), (0..60).map(line).collect::<String>()).unwrap();
    let reader = "[[user]]\nname = \"reader\"\nmodel = \"other\"\ntask = \"text-classification\"\n\
                  [user.encoder]\nmodel = \"bert\"\nadapter = \"fitted.safetensors\"\n";
    fs::write(workspace.path("pipeline.toml"), format!("{BERT}\n{reader}")).unwrap();
    workspace
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn fitted_adapter_replaces_an_encoder_in_a_pipeline() {
    let workspace = workspace();
    let fit = ["fit-adapter", "--from", "bert", "--to", "other", "--data", "texts.txt", "-o", "fitted.safetensors"];
    let words = text(workspace.run(&fit));
    assert!(words.contains("mean prediction") && words.contains("stored as fitted.safetensors"), "{words}");
    let report = workspace.json(&[&fit[..], &["--json"]].concat());
    assert_eq!((&report["samples"], &report["rows"]["type"]), (&60.into(), &"tokens".into()));
    assert!(report["quality"]["r2"].as_f64().unwrap() > 0.9, "{report}");

    let words = text(workspace.run(&["explain", "pipeline.toml"]));
    assert!(words.contains("reader / encoder (other): not loaded; encoder of bert is read instead"), "{words}");
    assert!(words.contains("held-out R²"), "{words}");
    let explained = workspace.json(&["explain", "pipeline.toml", "--json"]);
    assert_eq!(explained["encoders"][0]["adapter"]["quality"], report["quality"]);

    let ran = workspace.json(&["run", "pipeline.toml", "--text", "The harbour wakes.", "--json"]);
    let reader = &ran["users"][3];
    let roles: Vec<_> = reader["stages"].as_array().unwrap().iter().map(|stage| stage["role"].clone()).collect();
    assert_eq!(roles, ["adapter of encoder", "head"]);
    assert!(reader["notices"][0].as_str().unwrap().contains("held-out R²"), "{reader}");
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x", "--compare"], &["--compare", "reader"]);
}

#[test]
fn adapter_in_the_daemon_needs_no_file() {
    let workspace = workspace();
    let daemon = Daemon::start(&[]);
    let socket = daemon.socket();
    let daemon = ["--daemon", "--socket", socket.to_str().unwrap()];
    let run = |arguments: &[&str]| workspace.json(&[arguments, &daemon, &["--json"]].concat());
    let fitted = run(&["fit-adapter", "--from", "bert", "--to", "other", "--data", "texts.txt"]);
    assert!(fitted["tensor"].as_str().unwrap().starts_with("adapter/"), "{fitted}");
    let pipeline = fs::read_to_string(workspace.path("pipeline.toml")).unwrap();
    fs::write(workspace.path("pipeline.toml"), pipeline.replace("adapter = \"fitted.safetensors\"\n", "")).unwrap();
    let ran = run(&["run", "pipeline.toml", "--text", "The harbour wakes."]);
    assert_eq!(ran["users"][3]["stages"][0]["role"], "adapter of encoder");
}

#[test]
fn unfit_adapters_are_refused_by_name() {
    let workspace = workspace();
    let fit = ["fit-adapter", "--from", "bert", "--to"];
    let with = |rest: &[&'static str]| [&fit[..], rest].concat();
    workspace.expect_error(&with(&["other", "--data", "texts.txt"]), &["--output"]);
    workspace.expect_error(&with(&["other", "--data", "texts.txt", "-o", "a.npy"]), &["--output", ".safetensors"]);
    workspace.expect_error(&with(&["other", "--data", "absent.txt", "-o", "a.safetensors"]), &["absent.txt"]);
    fs::write(workspace.path("few.txt"), "one\ntwo\n").unwrap();
    workspace.expect_error(&with(&["other", "--data", "few.txt", "-o", "a.safetensors"]), &["data", "at least 20"]);
    workspace.expect_error(&with(&["bert", "--data", "texts.txt", "-o", "a.safetensors"]), &["same space"]);
    assert!(!workspace.path("a.safetensors").exists());

    let run = ["run", "pipeline.toml", "--text", "x"];
    workspace.expect_error(&run, &["fitted.safetensors"]);
    fs::write(workspace.path("fitted.safetensors"), b"no tensors").unwrap();
    let output = workspace.run(&run);
    assert!(String::from_utf8_lossy(&output.stderr).contains("fitted.safetensors"));
    // An adapter between other spaces: to the model from which it maps.
    let back = ["fit-adapter", "--from", "other", "--to", "bert", "--data", "texts.txt", "-o", "fitted.safetensors"];
    text(workspace.run(&back));
    workspace.expect_error(&run, &["adapter", "has space"]);
}
