//! The supervisor that a user started, its replacement and its successor.

use crate::support::processes::{Processes, children, content, put, settles_empty, signal, with_argument};
use crate::support::until;
use cotensor_store::{Retention, StoreReports, TensorStore};
use rustix::process::Signal;
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

#[test]
fn second_daemon_is_refused_with_the_process_of_the_first() {
    let processes = Processes::start();
    let refusal = processes.refused();
    assert!(refusal.contains("another daemon") && refusal.contains(&processes.supervisor().to_string()), "{refusal}");
    processes.connect("one");
}

#[test]
fn successor_takes_over_after_the_supervisor_was_killed() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "held", &content(1, 1 << 20), Retention::WhileLeased);
    drop(put(&one, "kept", &content(2, 5000), KEPT));
    let former = processes.server();
    let replacement = processes.kill_foreground();
    assert_eq!(one.get("held", &one.holder("")).unwrap().id(), held.id(), "the server continues");

    processes.start_again();
    until("the successor has its own server", || {
        children(processes.supervisor()).first().is_some_and(|pid| *pid != former)
    });
    let two = processes.connect("two");
    for (name, number, bytes) in [("held", 1, 1 << 20), ("kept", 2, 5000)] {
        assert_eq!(two.get(name, &two.holder("")).unwrap().bytes().unwrap(), content(number, bytes));
    }
    until("the former processes have ended", || with_argument(&processes.socket).len() == 2);
    assert!(!processes.folder.path().join("cotensor.sock.successor").exists());
    assert!(!with_argument(&processes.socket).contains(&replacement));
    assert!(processes.refused().contains(&processes.supervisor().to_string()), "the error names the new supervisor");

    // The new daemon works as any other: its server may die, and leases release tensors.
    processes.kill_server();
    assert_eq!(two.get("kept", &two.holder("")).unwrap().bytes().unwrap(), content(2, 5000));
    two.remove("kept").unwrap();
    drop((held, one, two));
    settles_empty(&processes);
    assert!(processes.stop());
    assert!(!processes.socket.exists() && with_argument(&processes.socket).is_empty());
}

#[test]
fn successor_with_wrong_arguments_takes_nothing_over() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "held", &content(1, 1 << 20), Retention::WhileLeased);
    drop(put(&one, "kept", &content(2, 5000), KEPT));
    let replacement = processes.kill_foreground();
    let file = processes.folder.path().join("no folder");
    std::fs::write(&file, "").unwrap();
    let refusal = processes.refused_with(&[(64 << 20).to_string().into(), file.into()]);
    assert!(refusal.contains("no folder"), "{refusal}");

    let two = processes.connect("two");
    for (name, number, bytes) in [("held", 1, 1 << 20), ("kept", 2, 5000)] {
        assert_eq!(two.get(name, &two.holder("")).unwrap().bytes().unwrap(), content(number, bytes));
    }
    assert!(with_argument(&processes.socket).contains(&replacement), "the former supervisor still has the state");
    processes.start_again();
    until("the former supervisor has ended", || !with_argument(&processes.socket).contains(&replacement));
    let three = processes.connect("three");
    assert_eq!(three.get("kept", &three.holder("")).unwrap().bytes().unwrap(), content(2, 5000));
    assert_eq!(three.get("held", &three.holder("")).unwrap().id(), held.id());
    assert!(processes.stop());
    assert!(!processes.socket.exists());
}

#[test]
fn clean_stop_of_a_later_server_ends_the_replacement_supervisor() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    drop(put(&one, "x", &content(1, 5000), KEPT));
    let replacement = processes.kill_foreground();
    // The server that started the supervisor dies; the supervisor starts the next one.
    let server = with_argument(&processes.socket).into_iter().find(|pid| *pid != replacement).unwrap();
    signal(server, Signal::KILL);
    let mut later = None;
    until("there is a later server", || {
        later = children(replacement).first().copied();
        later.is_some()
    });
    let two = processes.connect("two");
    assert_eq!(two.get("x", &two.holder("")).unwrap().bytes().unwrap(), content(1, 5000));
    signal(later.unwrap(), Signal::TERM);
    until("both processes have ended", || with_argument(&processes.socket).is_empty());
    let left: Vec<_> = std::fs::read_dir(processes.folder.path()).unwrap().flatten().map(|f| f.file_name()).collect();
    assert_eq!(left, ["cotensor.sock.lock"]);
}

#[test]
fn stopped_server_does_not_prevent_a_clean_stop() {
    const MIB: usize = 1 << 20;
    let mut processes =
        Processes::start_with(|folder| vec![(3 * MIB + (16 << 10)).to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    for number in 0..6 {
        drop(put(&one, &number.to_string(), &content(number, MIB), KEPT));
    }
    let lock = processes.folder.path().join("cotensor.sock.lock");
    assert_eq!(std::fs::read_to_string(&lock).unwrap().trim(), processes.supervisor().to_string());
    signal(processes.server(), Signal::STOP);
    assert!(processes.stop());
    until("the server has ended", || processes.running().is_empty());
    assert!(!processes.socket.exists());
    assert_eq!(std::fs::read_dir(processes.folder.path().join("spill")).unwrap().count(), 0);
    assert_eq!(std::fs::read(lock).unwrap(), b"", "the lock file names no process");
}

#[test]
fn spilled_tensors_outlive_the_server_and_end_with_the_daemon() {
    const MIB: usize = 1 << 20;
    let processes =
        Processes::start_with(|folder| vec![(3 * MIB + (16 << 10)).to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    for number in 0..6 {
        drop(put(&one, &number.to_string(), &content(number, MIB), KEPT));
    }
    let spilled = |processes: &Processes| -> usize {
        let folders = std::fs::read_dir(processes.folder.path().join("spill")).unwrap().flatten();
        folders.map(|folder| std::fs::read_dir(folder.path()).unwrap().count() - 1).sum()
    };
    assert_eq!((one.stats().spills, spilled(&processes)), (3, 3));
    processes.kill_server();
    let two = processes.connect("two");
    for number in 0..6 {
        assert_eq!(two.get(&number.to_string(), &two.holder("")).unwrap().bytes().unwrap(), content(number, MIB));
    }
    assert_eq!(spilled(&processes), 3, "other tensors were spilled for the restored ones");
    // A supervisor and a server that are killed leave files. The next daemon removes them.
    let mut processes = processes.start_anew();
    until("the next daemon answers", || {
        cotensor_client::ClientStore::connect(Some(&processes.socket), "three").is_ok()
    });
    assert_eq!(spilled(&processes), 0);
    let three = processes.connect("three");
    for number in 0..6 {
        drop(put(&three, &number.to_string(), &content(number, MIB), KEPT));
    }
    assert!(processes.stop());
    assert_eq!(std::fs::read_dir(processes.folder.path().join("spill")).unwrap().count(), 0);
}
