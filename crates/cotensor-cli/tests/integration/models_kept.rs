//! `models load`, `ps` and `unload`: the models of the process that the daemon starts.

use crate::support::{Daemon, fixtures};
use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture(name: &str) -> String {
    fixtures().join("tiny").join(name).canonicalize().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn models_are_loaded_shown_and_unloaded() {
    let daemon = Daemon::start(&[]);
    let (bert, vit) = (fixture("bert"), fixture("vit"));
    let nothing = daemon.json(&["models", "ps"]);
    assert!(nothing["models"].as_array().unwrap().is_empty() && nothing["pid"].is_null(), "no process was started");
    daemon.expect_error(&["models", "unload", &bert], 2, &["no model is loaded"]);
    assert_eq!(daemon.json(&["models", "unload", "--all"])["unloaded"].as_array().unwrap().len(), 0);

    let loaded = daemon.json(&["models", "load", &bert, "--ttl", "3600"]);
    assert!(loaded["weights_bytes"].as_u64().unwrap() > 0 && loaded["unload_in_s"].as_f64().unwrap() > 3000.0);
    // A slash at the end is the same folder.
    daemon.ok(&["models", "load", &format!("{vit}/"), "--pin"]);
    daemon.ok(&["embed", &bert, "gulls"]);
    let shown = daemon.json(&["models", "ps"]);
    assert!(shown["pid"].is_u64() && shown["pss_bytes"].as_u64().unwrap() > 0);
    let names: Vec<_> = shown["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect();
    assert_eq!(names, [bert.clone(), vit.clone()]);
    assert_eq!((&shown["models"][0]["requests"], &shown["models"][1]["pinned"]), (&1.into(), &true.into()));
    let table = String::from_utf8(daemon.ok(&["models", "ps"])).unwrap();
    assert!(table.contains("never") && table.contains(&bert) && table.lines().count() == 5, "{table}");

    daemon.expect_error(&["models", "unload", "clip"], 2, &["is not loaded", &bert]);
    daemon.ok(&["models", "unload", &format!("{vit}/")]);
    assert_eq!(daemon.json(&["models", "ps"])["models"].as_array().unwrap().len(), 1);
    assert_eq!(daemon.json(&["models", "unload", "--all"])["unloaded"][0], bert);
    daemon.expect_error(&["models", "load", "./none"], 2, &["none"]);
    daemon.expect_error(&["models", "load", &bert, "--ttl", "3", "--pin"], 2, &["--pin"]);
}

#[test]
fn weights_have_the_names_of_their_parameters() {
    let daemon = Daemon::start(&[]);
    daemon.ok(&["run", &fixture("bert"), "sentence-embedding", "--text", "gulls", "--daemon", "--engine", "rten"]);
    let listed = daemon.json(&["ls"]);
    let names: Vec<&str> =
        listed["tensors"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    let word = names.iter().find(|name| name.contains("word_embeddings")).unwrap();
    assert!(word.starts_with("weight/bert/"), "{names:?}");
    assert!(String::from_utf8(daemon.ok(&["stat", word])).unwrap().contains("weight"));
}

/// A daemon of an installation without onnxruntime.
fn without_onnxruntime() -> Daemon {
    let mut daemon = Daemon::stopped();
    daemon.serve_with(&[], without_library);
    daemon
}

/// Makes a command run as in an installation without onnxruntime.
fn without_library(command: &mut Command) {
    for variable in ["ORT_DYLIB_PATH", "COTENSOR_ENGINE", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(variable);
    }
    command.env("PATH", "/none");
}

/// Embeds a text as a client whose installation has the library.
fn embed(daemon: &Daemon, library: Option<&Path>) {
    let bert = fixture("bert");
    let mut command = daemon.command(&["embed", &bert, "gulls"]);
    without_library(&mut command);
    if let Some(library) = library {
        command.env("ORT_DYLIB_PATH", library);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn library_of_a_later_client_gives_the_model_process_its_engine() {
    let Some(library) = std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from) else {
        println!("skipped: ORT_DYLIB_PATH names no library of onnxruntime");
        return;
    };
    let daemon = without_onnxruntime();
    assert!(daemon.json(&["status"])["engine"].is_null(), "no process runs");
    embed(&daemon, None);
    let status = daemon.json(&["status"]);
    assert_eq!(status["engine"]["name"], "rten", "{status}");
    assert!(status["engine"]["absent"][0].as_str().unwrap().contains("pip install"), "{status}");
    let listed = daemon.json(&["models", "ps"]);
    assert!(listed["models"][0]["engines"][0].as_str().unwrap().starts_with("rten "), "{listed}");

    embed(&daemon, Some(&library));
    let next = daemon.json(&["status"]);
    assert_eq!((&next["engine"]["name"], &next["models"]), (&"ort".into(), &status["models"]), "the same process");
    let path = library.canonicalize().unwrap();
    assert_eq!(next["engine"]["library"], path.to_str().unwrap());
    let listed = daemon.json(&["models", "ps"]);
    assert_eq!(listed["engine"], next["engine"]);
    assert!(listed["models"][0]["engines"][0].as_str().unwrap().starts_with("ort "), "{listed}");
    for arguments in [&["status"][..], &["models", "ps"], &["doctor"]] {
        let text = String::from_utf8(daemon.ok(arguments)).unwrap();
        let version = next["engine"]["version"].as_str().unwrap();
        assert!(text.contains(&format!("ort {version} ({})", path.display())), "{text}");
    }

    // The next process has it from its start.
    let pid = next["models"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    embed(&daemon, None);
    assert_eq!(daemon.json(&["status"])["engine"], next["engine"]);
}

#[test]
fn library_that_cannot_be_loaded_leaves_the_built_in_engine_and_its_reason() {
    let daemon = without_onnxruntime();
    let (text, cut) = (daemon.path("libonnxruntime.so.1.98.0"), daemon.path("libonnxruntime.so.1.99.0"));
    std::fs::write(&text, "no library").unwrap();
    let program = std::fs::read(env!("CARGO_BIN_EXE_cotensor")).unwrap();
    // A file that the loader would map beyond its end.
    std::fs::write(&cut, &program[..program.len() / 4]).unwrap();
    for library in [&text, &cut] {
        embed(&daemon, Some(library));
        let status = daemon.json(&["status"]);
        assert_eq!(status["engine"]["name"], "rten", "{status}");
        let path = library.canonicalize().unwrap().display().to_string();
        for arguments in [&["status"][..], &["models", "ps"], &["doctor"]] {
            let text = String::from_utf8(daemon.ok(arguments)).unwrap();
            assert!(text.contains(&format!("{path}: cannot be loaded")), "{text}");
        }
    }
    // A library that is tried at the start does not end the process either.
    let pid = daemon.json(&["status"])["models"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    embed(&daemon, None);
    assert_eq!(daemon.json(&["status"])["engine"]["name"], "rten");
}

#[test]
fn bits_and_errors_of_a_quantized_model_are_listed() {
    let daemon = Daemon::start(&[]);
    let model = fixtures().join("low-bit/bert").canonicalize().unwrap().to_str().unwrap().to_owned();
    daemon.ok(&["embed", &model, "gulls", "--pooling", "mean"]);
    let quantized = &daemon.json(&["models", "ps"])["models"][0]["quantized"][0];
    assert_eq!((&quantized["stage"], &quantized["stored_bits"]), (&"encoder".into(), &4.5.into()));
    assert!(quantized["relative_error"].as_f64().is_some_and(|error| error > 0.0 && error < 0.2), "{quantized}");
    assert!(quantized["output_error"].is_null() && quantized["run_bits"].as_f64().unwrap() > 0.0, "{quantized}");
    let table = String::from_utf8(daemon.ok(&["models", "ps"])).unwrap();
    let bits = format!("encoder 4.5, {:.1} in the store", quantized["run_bits"].as_f64().unwrap());
    assert!(table.contains("bits") && table.contains(&bits), "{table}");
    daemon.ok(&["models", "unload", "--all"]);
    daemon.ok(&["embed", &fixture("bert"), "gulls", "--pooling", "mean"]);
    let table = String::from_utf8(daemon.ok(&["models", "ps"])).unwrap();
    assert!(!table.contains("bits"), "{table}");
}
