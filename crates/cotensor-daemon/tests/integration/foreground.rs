//! Who answers for a daemon: the process that somebody started, or the next one.

use crate::support::processes::{Processes, children, content, put, settles_empty, signal, with_argument};
use crate::support::until;
use cotensor_store::{Retention, StoreReports, TensorStore};
use rustix::process::Signal;
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

#[test]
fn a_second_is_refused_and_told_who_is_the_first() {
    let processes = Processes::start();
    let complaint = processes.refused();
    assert!(
        complaint.contains("another daemon") && complaint.contains(&processes.supervisor().to_string()),
        "{complaint}"
    );
    processes.connect("one");
}

#[test]
fn whoever_starts_it_again_inherits_what_a_killed_one_left() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "held", &content(1, 1 << 20), Retention::WhileLeased);
    drop(put(&one, "kept", &content(2, 5000), KEPT));
    let former = processes.server();
    let headless = processes.kill_foreground();
    assert_eq!(one.get("held", &one.holder("")).unwrap().id(), held.id(), "it goes on meanwhile");

    processes.start_again();
    until("the server is the new one's", || children(processes.supervisor()).first().is_some_and(|pid| *pid != former));
    let two = processes.connect("two");
    for (name, number, bytes) in [("held", 1, 1 << 20), ("kept", 2, 5000)] {
        assert_eq!(two.get(name, &two.holder("")).unwrap().bytes().unwrap(), content(number, bytes));
    }
    until("the former processes are gone", || with_argument(&processes.socket).len() == 2);
    assert!(!processes.folder.path().join("cotensor.sock.successor").exists());
    assert!(!with_argument(&processes.socket).contains(&headless));
    assert!(processes.refused().contains(&processes.supervisor().to_string()), "somebody answers for it again");

    // It is as any other: its server may die, and what is leased goes with its lease.
    processes.kill_server();
    assert_eq!(two.get("kept", &two.holder("")).unwrap().bytes().unwrap(), content(2, 5000));
    two.remove("kept").unwrap();
    drop((held, one, two));
    settles_empty(&processes);
    assert!(processes.stop());
    assert!(!processes.socket.exists() && with_argument(&processes.socket).is_empty());
}

#[test]
fn an_heir_with_wrong_arguments_takes_nothing() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "held", &content(1, 1 << 20), Retention::WhileLeased);
    drop(put(&one, "kept", &content(2, 5000), KEPT));
    let headless = processes.kill_foreground();
    let file = processes.folder.path().join("no folder");
    std::fs::write(&file, "").unwrap();
    let complaint = processes.refused_with(&[(64 << 20).to_string().into(), file.into()]);
    assert!(complaint.contains("no folder"), "{complaint}");

    let two = processes.connect("two");
    for (name, number, bytes) in [("held", 1, 1 << 20), ("kept", 2, 5000)] {
        assert_eq!(two.get(name, &two.holder("")).unwrap().bytes().unwrap(), content(number, bytes));
    }
    assert!(with_argument(&processes.socket).contains(&headless), "the former supervisor still has it");
    processes.start_again();
    until("the former supervisor is gone", || !with_argument(&processes.socket).contains(&headless));
    let three = processes.connect("three");
    assert_eq!(three.get("kept", &three.holder("")).unwrap().bytes().unwrap(), content(2, 5000));
    assert_eq!(three.get("held", &three.holder("")).unwrap().id(), held.id());
    assert!(processes.stop());
    assert!(!processes.socket.exists());
}

#[test]
fn a_later_servers_clean_stop_ends_a_keeper_that_another_started() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    drop(put(&one, "x", &content(1, 5000), KEPT));
    let headless = processes.kill_foreground();
    // The server that started the supervisor dies; the supervisor starts the next one.
    let server = with_argument(&processes.socket).into_iter().find(|pid| *pid != headless).unwrap();
    signal(server, Signal::KILL);
    let mut later = None;
    until("there is a later server", || {
        later = children(headless).first().copied();
        later.is_some()
    });
    let two = processes.connect("two");
    assert_eq!(two.get("x", &two.holder("")).unwrap().bytes().unwrap(), content(1, 5000));
    signal(later.unwrap(), Signal::TERM);
    until("both are gone", || with_argument(&processes.socket).is_empty());
    let left: Vec<_> = std::fs::read_dir(processes.folder.path()).unwrap().flatten().map(|f| f.file_name()).collect();
    assert_eq!(left, ["cotensor.sock.lock"]);
}

#[test]
fn a_server_that_stands_still_does_not_keep_a_daemon_from_ending_clean() {
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
    until("the server is gone, too", || processes.running().is_empty());
    assert!(!processes.socket.exists());
    assert_eq!(std::fs::read_dir(processes.folder.path().join("spill")).unwrap().count(), 0);
    assert_eq!(std::fs::read(lock).unwrap(), b"", "there is no process to end");
}

#[test]
fn what_was_spilled_comes_back_outlives_the_server_and_ends_with_the_daemon() {
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
    assert_eq!(spilled(&processes), 3, "others had to go for those that came back");
    // A foreground that is killed, and the server with it, leaves files; the next ones remove them.
    let mut processes = processes.start_anew();
    until("there is a daemon that knows nothing", || {
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
