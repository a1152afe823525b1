//! The daemon's program is removed or replaced, and then one of its processes dies.

use crate::support::processes::{PROGRAM, Processes, children, content, put, signal};
use crate::support::until;
use cotensor_store::{Retention, TensorStore};
use rustix::process::Signal;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

fn program_in(folder: &Path) -> PathBuf {
    folder.join("program")
}

/// A daemon whose program is a copy in its folder, with the tensor "x".
fn started() -> Processes {
    let copied = |folder: &Path| {
        std::fs::copy(PROGRAM, program_in(folder)).unwrap();
        vec![program_in(folder).into()]
    };
    let processes = Processes::start_by(copied, |_| Vec::new());
    drop(put(&processes.connect("one"), "x", &content(1, 1 << 20), KEPT));
    processes
}

/// Replaces the program by a script, as an upgrade does: under another name first.
fn replace(processes: &Processes, script: &str) {
    let (program, next) = (program_in(processes.folder.path()), processes.folder.path().join("next"));
    std::fs::write(&next, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&next, Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&next, &program).unwrap();
}

fn assert_has_x(processes: &Processes) {
    let store = processes.connect("reader");
    assert_eq!(store.get("x", &store.holder("")).unwrap().bytes().unwrap(), content(1, 1 << 20));
}

#[test]
fn removed_or_failing_program_loses_no_tensors() {
    let mut processes = started();
    std::fs::remove_file(program_in(processes.folder.path())).unwrap();
    processes.kill_server();
    assert_has_x(&processes);
    for script in ["exit 1", "exit 0", "head -c 9 > /dev/null", "kill -9 $$"] {
        replace(&processes, script);
        processes.kill_server();
        assert_has_x(&processes);
    }
    assert!(processes.stop());
}

#[test]
fn server_with_a_replaced_program_starts_a_working_supervisor() {
    let processes = started();
    replace(&processes, "exit 1");
    let server = processes.server();
    signal(processes.supervisor(), Signal::KILL);
    until("there is another supervisor", || processes.folder.path().join("cotensor.sock.successor").exists());
    let supervisor = children(server)[0];
    signal(server, Signal::KILL);
    until("there is another server", || !children(supervisor).is_empty());
    assert_has_x(&processes);
    signal(supervisor, Signal::TERM);
    until("all processes have ended", || processes.running().is_empty());
}

#[test]
fn new_version_takes_over() {
    let mut processes = started();
    let marker = processes.folder.path().join("started");
    replace(&processes, &format!("touch '{}'\nexec '{PROGRAM}' \"$@\"", marker.display()));
    // After a server that ended at its start, the running program is started once.
    until("the new version was started", || {
        processes.kill_server();
        assert_has_x(&processes);
        marker.exists()
    });
    assert!(processes.stop());
}
