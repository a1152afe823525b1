//! Mistakes of new users: errors name the cause, and exit codes tell whether the user can correct it.

use crate::support::Daemon;
use serde_json::json;
use std::fs;
use std::process::{Command, Stdio};

fn with(names: &[&str]) -> Daemon {
    let daemon = Daemon::start(&[]);
    fs::write(daemon.path("x.bin"), [1, 2]).unwrap();
    names.iter().for_each(|name| drop(daemon.ok(&["put", name, "x.bin", "--dtype", "uint8", "--shape", "2"])));
    daemon
}

#[test]
fn existing_names_are_processed_despite_missing_ones() {
    let daemon = with(&["a", "b", "c"]);
    for command in ["stat", "who"] {
        let found = daemon.json(&[command, "a", "b"]);
        let names: Vec<_> = found["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
        let output = daemon.run(&[command, "none", "a", "\u{1b}[2J", "b"]);
        let (shown, complaint) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(2));
        assert!(shown.contains('a') && shown.contains('b') && !shown.contains("none"), "{shown}");
        assert_eq!(complaint, "error: no tensor is named \"none\", \"\\u{1b}[2J\"; `cotensor ls` lists names\n");
    }
    let output = daemon.run(&["rm", "a", "none", "b", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed, json!({"removed": ["a", "b"], "missing": ["none"]}));
    daemon.expect_error(&["rm", ""], 2, &["no tensor is named \"\""]);
    assert_eq!(daemon.json(&["ls"])["tensors"].as_array().unwrap().len(), 1);
}

#[test]
fn errors_of_tensor_files_name_file_and_tensor() {
    let daemon = with(&[]);
    let file = |header: &str, bytes: usize| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes]].concat();
        fs::write(daemon.path("f.safetensors"), bytes).unwrap();
    };
    for (header, bytes, words) in [
        (
            r#"{"deep.w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            4,
            &["deep.w", "8 bytes by dtype and shape"][..],
        ),
        (r#"{"deep.w":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}"#, 2, &["deep.w", "F8_E8M0"]),
        (r#"{"deep.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7, &["deep.w", "truncated"]),
        (r#"{"deep.w":{"dtype":"F32","shape":"2","data_offsets":[0,8]}}"#, 8, &["deep.w", "invalid type"]),
    ] {
        file(header, bytes);
        let words = [&["f.safetensors"], words].concat();
        daemon.expect_error(&["put", "x", "f.safetensors"], 2, &words);
        daemon.expect_error(&["put", "--all", "x/", "f.safetensors"], 2, &words);
    }
    fs::create_dir(daemon.path("folder.npy")).unwrap();
    let output = daemon.run(&["put", "x", "folder.npy"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.starts_with("error: folder.npy: cannot read: Is a directory"), "{complaint}");
    daemon.expect_error(&["get", "x", "folder.npy"], 2, &["x"]);
}

#[test]
fn help_describes_the_program() {
    let daemon = with(&[]);
    assert!(String::from_utf8(daemon.ok(&["--help"])).unwrap().starts_with("One copy of every tensor per machine"));
}

#[test]
fn closed_pipe_ends_commands_without_error() {
    let daemon = with(&["a", "b"]);
    for words in [
        &["ls"][..],
        &["ls", "--json"],
        &["stat"],
        &["stat", "a"],
        &["get", "a", "-"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut child = daemon.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Closed before the first write.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !complaint.contains("error"), "{words:?}: {complaint}");
    }
}

#[test]
fn protocol_document_example_works() {
    let daemon = with(&[]);
    fs::write(daemon.path("two.bin"), [1f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    daemon.ok(&["put", "query", "two.bin", "--dtype", "float32", "--shape", "2"]);
    let document = include_str!("../../../../docs/reference/protocol.md");
    let program = document.split_once("```python\n").unwrap().1.split_once("```").unwrap().0;
    let output = Command::new("python3").args(["-c", program]).current_dir(daemon.folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "[2] (1.0, 2.0)\n");
}

#[test]
fn missing_daemon_is_not_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["ls"][..], &["get", "x", "x.npy"], &["call", "f"], &["tasks"], &["stat", "x"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_cotensor"));
        program.args(command).current_dir(folder.path()).env("COTENSOR_AUTOSTART", "0");
        program.env("COTENSOR_SOCKET", folder.path().join("nowhere.sock"));
        let output = program.stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && printed.contains("no daemon answers"), "{command:?}: {printed}");
    }
}

#[test]
fn empty_variables_count_as_unset() {
    let daemon = with(&["a"]);
    for name in ["COTENSOR_THREADS", "COTENSOR_MAX_MEMORY", "COTENSOR_CACHE"] {
        let output = daemon.command(&["demo", "--scenario", "none"]).env(name, "").output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.contains("unknown scenario"), "{name}: {complaint}");
    }
    let listed = daemon.command(&["ls", "--json"]).env("COTENSOR_LOG", "").output().unwrap();
    assert!(listed.status.success());
}

#[test]
fn wrong_variable_is_named_with_its_value() {
    let place = Daemon::stopped();
    for (variable, value, arguments) in [
        ("COTENSOR_MAX_MEMORY", "4 pounds", &["serve"][..]),
        ("COTENSOR_IDLE_EXIT", "soon", &["serve"]),
        ("COTENSOR_LISTEN", "localhost", &["serve"]),
        ("COTENSOR_LOG", "loud", &["serve"]),
        ("COTENSOR_AUTOSTART", "maybe", &["ls"]),
        ("COTENSOR_ENGINE", "torch", &["run", "m", "--text", "a"]),
        ("COTENSOR_THREADS", "many", &["run", "m", "--text", "a"]),
    ] {
        let output = place.command(arguments).env(variable, value).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable}: {complaint}");
        assert!(complaint.starts_with(&format!("error: the variable {variable} (--")), "{complaint}");
        assert!(complaint.contains(value) && !complaint.contains("--help"), "{complaint}");
    }
}

#[test]
fn usage_errors_do_not_list_options_set_by_variables() {
    let daemon = with(&[]);
    let output = daemon.run(&["put", "only-a-name"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("<FILE>") && !complaint.contains("--socket"), "{complaint}");
    // An error in the variable's value is shown.
    let output = daemon.command(&["demo"]).env("COTENSOR_THREADS", "many").output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("many") && complaint.contains("--threads"), "{complaint}");
}

#[test]
fn options_without_effect_are_refused() {
    let daemon = with(&[]);
    fs::write(daemon.path("p.toml"), "").unwrap();
    daemon.expect_error(&["run", "p.toml", "--socket", "s"], 2, &["--daemon"]);
    for (option, value) in [("--cache", "c"), ("--max-memory", "5MiB")] {
        daemon.expect_error(
            &["run", "p.toml", "--daemon", option, value],
            2,
            &[option, "cannot be used with --daemon"],
        );
    }
}
