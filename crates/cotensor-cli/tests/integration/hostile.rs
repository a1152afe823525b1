//! Hostile input and environments: one error, no crash, no leftovers.

use crate::support::{Workspace, copy, fixtures};
use std::fs;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

fn command(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cotensor"));
    command.current_dir(workspace.path("")).env("COTENSOR_CACHE", workspace.path("cache")).args(arguments);
    command
}

#[test]
fn control_characters_in_files_are_escaped() {
    let workspace = Workspace::with("bert");
    let user =
        |model: &str| format!("[[user]]\nname=\"a\\u001b]0;x\"\nmodel=\"{model}\"\ntask='text-classification'\n");
    fs::write(workspace.path("pipeline.toml"), user("\\u001b[2J\\u0007")).unwrap();
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x"], &[r"\u{1b}[2J\u{7}"]);
    let config = fs::read_to_string(workspace.path("bert/config.json")).unwrap();
    let labels = r#""id2label": {"0": "\u001b[31m", "1": "\u001b[31m"}"#;
    let start = config.find('{').unwrap() + 1;
    fs::write(workspace.path("bert/config.json"), format!("{{{labels},{}", &config[start..])).unwrap();
    fs::write(workspace.path("pipeline.toml"), user("bert")).unwrap();
    let output = workspace.run(&["run", "pipeline.toml", "--text", "x"]);
    assert_eq!(output.status.code(), Some(0));
    for text in [output.stdout, output.stderr] {
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r"\u{1b}") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn long_errors_are_shortened() {
    let workspace = Workspace::with("bert");
    let task = "x".repeat(900_000);
    fs::write(workspace.path("pipeline.toml"), format!("[[user]]\nname='a'\nmodel='bert'\ntask='{task}'\n")).unwrap();
    let output = workspace.run(&["run", "pipeline.toml", "--text", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.len() < 4000, "{} bytes", output.stderr.len());
}

#[test]
fn closed_streams_cause_no_crash() {
    let workspace = Workspace::with("bert");
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (arguments, code) in [(&["run", "none.toml"][..], 2), (&["run", "pipeline.toml", "--text", "x"], 0)] {
        let output = command(&workspace, arguments).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
    for arguments in [&["completions", "bash"][..], &["models", "families"], &["run", "pipeline.toml", "--text", "x"]] {
        let output = command(&workspace, arguments).stdout(full()).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && complaint.contains("error: cannot write"), "{complaint}");
    }
    // A closed pipe.
    let mut child = command(&workspace, &["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn invalid_options_are_refused_before_the_demo_runs() {
    let workspace = Workspace::with("bert");
    fs::write(workspace.path("file"), b"kept").unwrap();
    workspace.expect_error(&["demo", "--models", "absent"], &["absent", "--models"]);
    workspace.expect_error(&["demo", "--models", "file"], &["file", "--models"]);
    workspace.expect_error(&["demo", "--report", "absent/report.html"], &["absent/report.html", "--report"]);
    workspace.expect_error(&["demo", "--report", "."], &["--report"]);
    workspace.expect_error(&["demo", "--report", "file", "--scenario", "opera"], &["opera"]);
    assert_eq!(fs::read(workspace.path("file")).unwrap(), b"kept");
    workspace.expect_error(&["demo", "--report", "new.html", "--scenario", "opera"], &["opera"]);
    assert!(!workspace.path("new.html").exists());
    assert!(workspace.json(&["models", "families", "--json"]).is_object());
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x", "--cache", "file"], &["file: not a folder"]);
    workspace.expect_error(&["run", "pipeline.toml", "--text", "x", "--cache", "file/below"], &["file/below"]);
}

#[test]
fn explain_refuses_what_run_refuses() {
    let workspace = Workspace::with("bert");
    let user = "[[user]]\nname='a'\nmodel='bert'\ntask='sentence-embedding'\ntexts=['a','b']\n";
    fs::write(workspace.path("pipeline.toml"), user).unwrap();
    for arguments in [&["run", "pipeline.toml", "--text", "x"][..], &["explain", "pipeline.toml"]] {
        workspace.expect_error(arguments, &["pipeline.toml", "a.texts"]);
    }
}

#[test]
fn sound_with_overflowing_samples_is_refused() {
    let workspace = Workspace::with("whisper");
    fs::write(workspace.path("pipeline.toml"), "[[user]]\nname='a'\nmodel='whisper'\ntask='language-identification'\n")
        .unwrap();
    // Format 3: 32-bit floats, one channel, 8 kHz.
    let data = f32::MAX.to_le_bytes().repeat(1000);
    let bytes = u32::try_from(data.len()).unwrap();
    let mut file = [*b"RIFF", (36 + bytes).to_le_bytes(), *b"WAVE", *b"fmt ", 16u32.to_le_bytes()].concat();
    file.extend(
        [3, 0, 1, 0].iter().chain(&8000u32.to_le_bytes()).chain(&32_000u32.to_le_bytes()).chain(&[4, 0, 32, 0]),
    );
    file.extend([*b"data", bytes.to_le_bytes()].concat());
    file.extend(data);
    fs::write(workspace.path("loud.wav"), file).unwrap();
    workspace.expect_error(&["run", "pipeline.toml", "--audio", "loud.wav"], &["loud.wav", "sample 0"]);
}

#[test]
fn engine_panic_is_one_error() {
    let workspace = Workspace::with("clip");
    let user = "[[user]]\nname='a'\nmodel='clip'\ntask='image-classification'\n";
    fs::write(workspace.path("pipeline.toml"), user).unwrap();
    // A transpose gets a duplicate axis: [0, 2, 1, 3] becomes [0, 2, 2, 3].
    let path = workspace.path("clip/onnx/vision_model.onnx");
    let mut graph = fs::read(&path).unwrap();
    let perm = b"perm";
    let at = graph.windows(perm.len()).position(|window| window == perm).unwrap() + perm.len();
    let axis = (at..at + 16).find(|&at| graph[at] == 1 && graph[at + 1] != 1).unwrap();
    graph[axis] = 2;
    fs::write(&path, graph).unwrap();
    let photo = fixtures().join("media/photo.png");
    let output = workspace.run(&["run", "pipeline.toml", "--image", photo.to_str().unwrap()]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{complaint}");
    assert!(complaint.contains("vision_model.onnx") && !complaint.contains("panicked at"), "{complaint}");
    assert_eq!(complaint.matches("error").count(), 1, "{complaint}");
}

#[test]
fn stopped_demo_removes_its_files() {
    let workspace = Workspace::with("bert");
    copy(&fixtures().join("tiny/bert"), &workspace.path("models/bert-base"));
    let arguments = ["demo", "--scenario", "bert", "--models", "models", "--repeats", "99", "--report", "new.html"];
    let mut child = command(&workspace, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line reports a cold run.
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), output.stdout.len()), (Some(15), 0));
    let left = fs::read_dir(workspace.path("cache")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with('.')));
    assert!(!workspace.path("new.html").exists());
}
