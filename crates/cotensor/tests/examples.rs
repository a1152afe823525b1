//! Runs the programs in examples/ and checks their output.

use cotensor_daemon::{Config, Embedded};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The path of an example. Cargo builds examples beside the folder of the test programs.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let built = test.ancestors().nth(2).expect("PROFILE/deps/TEST");
    let path = built.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.is_file(), "{} is not built; `cargo test -p cotensor` builds it", path.display());
    path
}

/// Runs an example with `temporary` as its folder for temporary files, and returns its output.
fn printed(name: &str, temporary: &Path) -> String {
    let _ = std::fs::remove_dir_all(temporary);
    std::fs::create_dir_all(temporary).expect("a folder of this test's own");
    output_of(Command::new(program(name)).env("TMPDIR", temporary))
}

/// The output of a program that must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the example can be run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A daemon at `socket`. The examples start one themselves if the command `cotensor` is built.
fn daemon(socket: &Path) -> Embedded {
    Embedded::start(Config { socket: socket.to_path_buf(), ..Config::default() })
        .expect("no other daemon has the socket")
}

/// The output of an example that uses the daemon at the socket of its argument.
fn output_with_daemon(name: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cotensor.sock");
    let _daemon = daemon(&socket);
    output_of(Command::new(program(name)).arg(socket))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The text between `before` and `after` in `line`.
fn between<'a>(line: &'a str, before: &str, after: &str) -> &'a str {
    let found = line.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("{before:?} and {after:?} are expected in {line:?}")).0
}

#[test]
fn share_encoder_computes_the_encoder_once() {
    let printed = printed("share_encoder", &folder("share_encoder"));
    let (classifier, tagger) = printed.split_once("tagger: ").expect("two models");
    assert!(classifier.contains("classifier: Label") && classifier.contains("\n  encoder was computed\n"), "{printed}");
    assert!(tagger.starts_with("Tokens") && tagger.contains("\n  encoder was reused\n"), "{printed}");
    assert!(tagger.contains("\n  head.entities was computed\n"), "{printed}");
}

#[test]
fn share_weights_maps_one_file() {
    let temporary = folder("share_weights");
    let printed = printed("share_weights", &temporary);
    let lines: Vec<&str> = printed.lines().collect();
    let [first, second] = lines[..] else { panic!("{printed}") };
    assert!(first.starts_with("first: ") && second.starts_with("second: "), "{printed}");
    let bytes = |line| between(line, "weights of ", " bytes").parse::<u64>().expect("a number");
    assert!(bytes(first) > 100_000 && bytes(first) == bytes(second), "{printed}");
    // The weights are imported once. The second process maps a file of the first: the kernel has one copy of its pages. If the
    // engine packs weights, the first process maps the imported ones, too.
    assert_eq!(between(first, "bytes, ", " bytes copied"), bytes(first).to_string(), "{printed}");
    assert_eq!(between(second, "bytes, ", " bytes copied"), "0", "{printed}");
    let [first, second] = [first, second].map(|line| between(line, "file {", "}").split(", ").collect::<BTreeSet<_>>());
    assert!(second.iter().all(|file| file.starts_with('"')) && second.is_subset(&first), "{printed}");
    let left = std::fs::read_dir(temporary).expect("the folder is there").count();
    assert_eq!(left, 0, "the example removes its cache");
}

#[test]
fn tensor_view_shares_memory() {
    let printed = printed("tensor_view", &folder("tensor_view"));
    let lines: Vec<&str> = printed.lines().collect();
    let [row, halved, beyond, same, first] = lines[..] else { panic!("{printed}") };
    assert!(row.starts_with("encoder.last_hidden_state/") && row.contains("row [1, 1, 32]"), "{row}");
    assert!(halved.contains("shape [1, 1, 16]") && halved.contains(", 2]"), "{halved}");
    assert!(beyond.contains("outside"), "{beyond}");
    assert_eq!(same, "same memory: true");
    // The view still reads the row's first number.
    assert_eq!(between(row, "starts with [", ","), first.trim_start_matches("first number: "));
}

#[test]
fn caller_uses_functions_of_the_provider() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cotensor.sock");
    let _daemon = daemon(&socket);
    let mut provider = Command::new(program("provider"));
    provider.arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut provider = provider.spawn().expect("the example can be run");
    let mut ready = String::new();
    let mut lines = BufReader::new(provider.stdout.take().expect("piped"));
    lines.read_line(&mut ready).expect("a line");
    assert_eq!(ready, "ready\n");
    let output = output_of(Command::new(program("caller")).arg(&socket));
    for line in [
        "mean: 3\n",
        "scaled: [10.0, 20.0, 30.0, 60.0]\n",
        "the task has completed\n",
        "its result: done\n",
        "the long task is cancelled\n",
        "counted: 42\n",
        "expected error: invalid: ",
    ] {
        assert!(output.contains(line), "{line}{output}");
    }
    drop(provider.stdin.take());
    assert!(provider.wait().expect("a status").success());
}

#[test]
fn share_processes_reuses_results() {
    let output = output_with_daemon("share_processes");
    assert!(output.contains("first: 1 of 1 stages computed here\n"), "{output}");
    assert!(output.contains("second: the tensor has 8388608 bytes, the last is Some(7)\n"), "{output}");
    assert!(output.contains("second: 0 of 1 stages computed here\n"), "{output}");
}

#[test]
fn serve_model_computes_once() {
    let output = output_with_daemon("serve_model");
    let computed: Vec<_> = output.lines().filter(|line| line.starts_with("computed: ")).collect();
    assert_eq!(computed, ["computed: Bool(true)", "computed: Bool(false)"], "{output}");
}
