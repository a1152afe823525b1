//! Waits that take long are reported on standard error with the awaited process.

use crate::support::{Daemon, fixtures};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

/// Starts a command, and reads the first line of its standard error.
fn waiting(command: &mut Command) -> (Child, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

#[test]
fn stopped_daemon_is_reported_to_waiting_commands() {
    let daemon = Daemon::start(&[]);
    let server = daemon.ready["server"].to_string();
    for arguments in [&["ls"][..], &["models", "ps"], &["status"]] {
        signal("-STOP", &server);
        let (mut child, line) = waiting(&mut daemon.command(arguments));
        signal("-CONT", &server);
        let (processes, rest) = line.split_once(", the daemon at ").expect(&line);
        assert!(processes.starts_with("waiting for process ") && processes.contains(&format!("process {server} (")));
        let end = format!(
            "cotensor.sock, to answer session.hello; process {server} is stopped: `kill -CONT {server}` continues it; \
             `cotensor stop` ends the daemon"
        );
        assert!(rest.ends_with(&end), "{line}");
        assert!(child.wait().unwrap().success(), "{arguments:?} waits on");
    }
}

#[test]
fn held_lock_of_a_start_is_reported() {
    let daemon = Daemon::stopped();
    let lock = File::create(daemon.path("cotensor.start")).unwrap();
    lock.lock().unwrap();
    let (mut child, line) = waiting(daemon.command(&["ls"]).env("COTENSOR_AUTOSTART", "1"));
    let start = format!("waiting for process {} (", std::process::id());
    assert!(line.starts_with(&start) && line.contains("), which starts a daemon and has locked /"), "{line}");
    assert!(line.ends_with("cotensor.start"), "{line}");
    drop(lock);
    assert!(child.wait().unwrap().success(), "it waits on");
    daemon.ok(&["stop"]);
}

#[test]
fn function_without_a_provider_is_reported() {
    let daemon = Daemon::start(&[]);
    let (mut child, line) = waiting(&mut daemon.command(&["call", "nobody", "--wait", "600"]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "waiting for a process that offers the function \"nobody\": none does");
}

#[test]
fn stopped_model_process_is_reported_and_replaced() {
    let daemon = Daemon::start(&[]);
    let bert = fixtures().join("tiny/bert").canonicalize().unwrap();
    let embed = ["embed", bert.to_str().unwrap(), "a crane lifts grain"];
    let printed = daemon.ok(&embed);
    let models = || daemon.json(&["models", "ps"])["pid"].as_u64();
    let first = models().unwrap();
    signal("-STOP", &first.to_string());
    std::thread::scope(|scope| {
        for arguments in [&["models", "ps"][..], &embed] {
            let daemon = &daemon;
            scope.spawn(move || {
                let output = daemon.run(arguments);
                let text = String::from_utf8(output.stderr).unwrap();
                assert!(output.status.success(), "{arguments:?}: {text}");
                let start = format!("waiting for process {first} (");
                let end = format!("; process {first} is stopped: `kill -CONT {first}` continues it");
                assert!(text.lines().any(|line| line.starts_with(&start) && line.ends_with(&end)), "{text}");
            });
        }
    });
    let second = models().unwrap();
    assert!(second != first && !std::path::Path::new("/proc").join(first.to_string()).exists());
    assert_eq!(daemon.ok(&embed), printed);
}
