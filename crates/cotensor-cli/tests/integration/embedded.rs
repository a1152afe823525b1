//! The command embedded in another program, such as an interpreter: further processes are started by that program.

use crate::support::{Workspace, copy, fixtures, until};
use cotensor_cli::{Launch, run_with};
use cotensor_client::{ClientStore, protocol};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A script that runs the command and logs its process id and arguments.
fn interpreter(folder: &Path) -> (Launch, PathBuf) {
    let (script, log) = (folder.join("cotensor.sh"), folder.join("log"));
    let text = format!("echo \"$$ $*\" >> '{}'\nexec '{}' \"$@\"\n", log.display(), env!("CARGO_BIN_EXE_cotensor"));
    fs::write(&script, text).unwrap();
    (Launch::Command("/bin/sh".into(), vec![script.into()]), log)
}

fn words(words: &[&str]) -> Vec<OsString> {
    [&["cotensor"], words].concat().into_iter().map(OsString::from).collect()
}

/// Process ids and arguments of the started processes.
fn started(log: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(pid, words)| (pid.into(), words.into())).collect()
}

fn kill(arguments: &[&str]) {
    assert!(Command::new("kill").args(arguments).status().unwrap().success());
}

#[test]
fn servers_are_started_by_the_given_command() {
    let folder = tempfile::tempdir().unwrap();
    let (launch, log) = interpreter(folder.path());
    let socket = folder.path().join("cotensor.sock");
    let arguments = words(&["serve", "--log", "warn", "--socket", socket.to_str().unwrap()]);
    let serving = std::thread::spawn(move || run_with(arguments, launch));
    let connected = |name: &str| {
        let mut store = None;
        until("it serves", || {
            store = ClientStore::connect(Some(&socket), name).ok();
            store.is_some()
        });
        store.unwrap()
    };
    let ping = |store: &ClientStore| store.request::<protocol::Ping>(&Default::default()).is_ok();
    assert!(ping(&connected("one")));
    let servers = started(&log);
    let given = format!("serve --log warn --socket {} --role server", socket.display());
    assert_eq!((servers.len(), &servers[0].1), (1, &given));
    kill(&["-KILL", &servers[0].0]);
    until("another is started", || started(&log).len() == 2);
    assert_eq!(started(&log)[1].1, given);
    assert!(ping(&connected("two")));
    // This process is the daemon's supervisor.
    kill(&[&std::process::id().to_string()]);
    assert_eq!(serving.join().unwrap(), 0);
}

#[test]
fn demo_workers_are_started_by_the_given_command() {
    let workspace = Workspace::with("bert");
    let (launch, log) = interpreter(&workspace.path(""));
    let models = workspace.path("models");
    copy(&fixtures().join("tiny/bert"), &models.join("bert-base"));
    for head in ["head.entities", "head.sentiment"] {
        let target = models.join(format!("bert-base/onnx/{head}.onnx"));
        if !target.is_file() {
            fs::copy(models.join("bert-base/onnx/head.onnx"), target).unwrap();
        }
    }
    let (models, cache) = (models.to_str().unwrap().to_owned(), workspace.path("cache").to_str().unwrap().to_owned());
    let demo =
        ["demo", "--scenario", "bert", "--repeats", "1", "--threads", "2", "--models", &models, "--cache", &cache];
    assert_eq!(run_with(words(&demo), launch), 0);
    let runs = started(&log);
    assert!(!runs.is_empty() && runs.iter().all(|(_, words)| words.starts_with("demo-worker ")), "{runs:?}");
}

#[test]
fn errors_are_returned_as_exit_codes() {
    assert_eq!(run_with(words(&["--version"]), Launch::ThisProgram), 0);
    assert_eq!(run_with(words(&["no-such-command"]), Launch::ThisProgram), 2);
    assert_eq!(run_with(words(&["serve", "--listen", "nowhere"]), Launch::ThisProgram), 2);
}
