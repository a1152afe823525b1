//! Messages: each starts with the thing that it is about, is one JSON object with `--json`, and fits a terminal in the help.

use crate::support::{BERT, Daemon, Workspace};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The error of a command that fails.
fn error(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn messages_start_with_the_thing() {
    let daemon = Daemon::start(&[]);
    for (arguments, expected) in [
        (&["tasks", "1a2b3c-7"][..], "error: task 1a2b3c-7 not found: its provider has ended\n"),
        (&["channel", "none"], "error: channel \"none\" not found\n"),
        (&["get", "none", "x.npy"], "error: no tensor is named \"none\"\n"),
        (&["embed", "./none", "x"], "error: ./none: no such folder\n"),
        (&["models", "load", "./none"], "error: ./none: no such folder\n"),
        (&["run", "./none", "--text", "x"], "error: ./none: no such folder\n"),
    ] {
        assert_eq!(error(&daemon, arguments), expected);
    }
    fs::write(daemon.path("file"), BERT).unwrap();
    assert_eq!(error(&daemon, &["embed", "./file", "x"]), "error: ./file: not a folder\n");
}

#[test]
fn errors_are_json_with_json() {
    let daemon = Daemon::start(&[]);
    let object = |arguments: &[&str], code: i32| -> Value {
        let output = daemon.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let lines = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        lines.last().unwrap()["error"].clone()
    };
    assert_eq!(
        object(&["stat", "none\u{1b}", "--json"], 2),
        json!({"kind": "not_found", "message": "no tensor is named \"none\\u{1b}\"; `cotensor ls` lists names"})
    );
    let missing = object(&["put", "x", "none.npy", "--json"], 2);
    assert_eq!((&missing["kind"], &missing["file"]), (&"not_found".into(), &"none.npy".into()), "{missing}");
    let wrong = object(&["tasks", "x", "--json"], 2);
    assert_eq!((&wrong["kind"], &wrong["field"]), (&"invalid".into(), &"TASK".into()), "{wrong}");
    for arguments in
        [&["stat", "--json", "--none"][..], &["ls", "--limit", "none", "--json"], &["serve", "--json", "x"]]
    {
        let usage = object(arguments, 2);
        let message = usage["message"].as_str().unwrap();
        let option = arguments.iter().find(|argument| argument.contains("none") || **argument == "x").unwrap();
        assert!(usage["kind"] == "invalid" && message.contains(option), "{usage}");
        assert!(!message.contains("Usage") && !message.contains("error:"), "{usage}");
    }
    // Notices are objects, too.
    let stopped = Daemon::stopped();
    let output = stopped.run(&["stop", "--json"]);
    for line in String::from_utf8(output.stderr).unwrap().lines() {
        serde_json::from_str::<Value>(line).expect(line);
    }
    // An argument of a script is not this command's.
    let trace = stopped.run(&["trace", "none.py", "-o", "t.json", "--json"]);
    assert!(trace.stderr.starts_with(b"error: "), "{trace:?}");
}

#[test]
fn help_fits_a_page_and_headings_have_their_options_only() {
    let workspace = Workspace::with("bert");
    let help = |arguments: &[&str]| {
        let output = workspace.run(arguments);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let commands = help(&["--help"]);
    // Each command is indented by two; further lines of its text by more.
    let names =
        commands.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| line.starts_with(char::is_lowercase)));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let mut count = 0;
    for name in names.filter(|name| *name != "help") {
        let text = help(&[name, "--help"]);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
        if let Some((_, sharing)) = text.split_once("Sharing:\n") {
            let options = sharing.lines().filter(|line| line.trim_start().starts_with("--")).count();
            assert_eq!(options, 3, "{name}: {sharing}");
        }
        count += 1;
    }
    assert!(count > 30, "{commands}");
}

#[test]
fn trace_names_missing_packages_only_if_they_are_missing() {
    let workspace = Workspace::with("bert");
    fs::write(workspace.path("script.py"), "").unwrap();
    let python = |name: &str, found: u8| {
        let path = workspace.path(name);
        // The packages are searched with -c; the recorder fails.
        fs::write(&path, format!("#!/bin/sh\n[ \"$1\" = -c ] && exit {found}\nexit 1\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let path = path.to_str().unwrap();
        let output = workspace.run(&["trace", "script.py", "-o", "t.json", "--python", path]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(python("complete", 0), "error: script.py failed (exit status: 1)\n");
    let missing = python("bare", 1);
    assert!(missing.contains("does not have the Python packages cotensor and torch"), "{missing}");
    workspace.expect_error(&["trace", "none.py", "-o", "t.json"], &["none.py: cannot open"]);
}
