//! The programs in examples/ do what they say. They are run as built, and judged by what they print.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Cargo puts the examples beside the folder of the test programs.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let built = test.ancestors().nth(2).expect("PROFILE/deps/TEST");
    let path = built.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.is_file(), "{} is not built; `cargo test -p cotensor` does that", path.display());
    path
}

fn printed(name: &str, temporary: &Path) -> String {
    // What an earlier test that was killed has left must not count.
    drop(std::fs::remove_dir_all(temporary));
    std::fs::create_dir_all(temporary).expect("a folder of this test's own");
    said(Command::new(program(name)).env("TMPDIR", temporary))
}

/// What a program prints that has to succeed.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("the example can be run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What an example prints whose argument is the socket of a daemon; there is none before.
fn said_over_daemon(name: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    said(Command::new(program(name)).arg(folder.path().join("cotensor.sock")))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// What stands between `before` and `after` in `line`.
fn between<'a>(line: &'a str, before: &str, after: &str) -> &'a str {
    let found = line.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("{before:?} and {after:?} are expected in {line:?}")).0
}

#[test]
fn share_encoder() {
    let printed = printed("share_encoder", &folder("share_encoder"));
    let (classifier, tagger) = printed.split_once("tagger: ").expect("two models");
    assert!(classifier.contains("classifier: Label") && classifier.contains("\n  encoder ran\n"), "{printed}");
    assert!(tagger.starts_with("Tokens") && tagger.contains("\n  encoder was there already\n"), "{printed}");
    assert!(tagger.contains("\n  head.entities ran\n"), "{printed}");
}

#[test]
fn share_weights() {
    let temporary = folder("share_weights");
    let printed = printed("share_weights", &temporary);
    let lines: Vec<&str> = printed.lines().collect();
    let [first, second] = lines[..] else { panic!("{printed}") };
    assert!(first.starts_with("first: ") && second.starts_with("second: "), "{printed}");
    let bytes = |line| between(line, "weights of ", " bytes").parse::<u64>().expect("a number");
    assert!(bytes(first) > 100_000 && bytes(first) == bytes(second), "{printed}");
    // The weights are imported once. Both processes map one file: the kernel has one copy of its pages.
    assert_eq!(between(first, "bytes, ", " bytes copied"), bytes(first).to_string(), "{printed}");
    assert_eq!(between(second, "bytes, ", " bytes copied"), "0", "{printed}");
    let file = between(first, "file {\"", "\"}");
    assert!(!file.is_empty() && file == between(second, "file {\"", "\"}"), "{printed}");
    let left = std::fs::read_dir(temporary).expect("the folder is there").count();
    assert_eq!(left, 0, "the example removes its cache");
}

#[test]
fn tensor_view() {
    let printed = printed("tensor_view", &folder("tensor_view"));
    let lines: Vec<&str> = printed.lines().collect();
    let [row, halved, beyond, same, first] = lines[..] else { panic!("{printed}") };
    assert!(row.starts_with("encoder.last_hidden_state/") && row.contains("row [1, 1, 32]"), "{row}");
    assert!(halved.contains("shape [1, 1, 16]") && halved.contains(", 2]"), "{halved}");
    assert!(beyond.contains("outside"), "{beyond}");
    assert_eq!(same, "same memory: true");
    // The view still reads the number that the row began with.
    assert_eq!(between(row, "starts with [", ","), first.trim_start_matches("first number: "));
}

#[test]
fn provider_and_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cotensor.sock");
    let mut provider = Command::new(program("provider"));
    provider.arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut provider = provider.spawn().expect("the example can be run");
    let mut ready = String::new();
    let mut lines = BufReader::new(provider.stdout.take().expect("piped"));
    lines.read_line(&mut ready).expect("a line");
    assert_eq!(ready, "ready, and the daemon\n");
    let heard = said(Command::new(program("caller")).arg(&socket));
    for line in [
        "mean: 3\n",
        "scaled: [10.0, 20.0, 30.0, 60.0]\n",
        "the task has completed\n",
        "its result: rested\n",
        "the other is cancelled\n",
        "counted: 42\n",
        "as it should: invalid: ",
    ] {
        assert!(heard.contains(line), "{line}{heard}");
    }
    drop(provider.stdin.take());
    assert!(provider.wait().expect("a status").success());
}

#[test]
fn share_processes() {
    let heard = said_over_daemon("share_processes");
    assert!(heard.contains("first: 1 of 1 stages computed here\n"), "{heard}");
    assert!(heard.contains("second: the tensor has 8388608 bytes, the last is Some(7)\n"), "{heard}");
    assert!(heard.contains("second: 0 of 1 stages computed here\n"), "{heard}");
}

#[test]
fn serve_model() {
    let heard = said_over_daemon("serve_model");
    let computed: Vec<_> = heard.lines().filter(|line| line.starts_with("computed: ")).collect();
    assert_eq!(computed, ["computed: Bool(true)", "computed: Bool(false)"], "{heard}");
}
