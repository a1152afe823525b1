//! Files of the socket and the lock are removed while the daemon runs.

use crate::support::processes::{Processes, children, content, put, signal, with_argument};
use crate::support::until;
use cotensor_client::ClientStore;
use cotensor_store::{Retention, TensorStore};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

fn lock_of(processes: &Processes) -> std::path::PathBuf {
    processes.folder.path().join("cotensor.sock.lock")
}

/// Whether new clients find the daemon that has the tensor "x".
fn is_found(socket: &Path) -> bool {
    ClientStore::connect(Some(socket), "finder").is_ok_and(|store| store.get("x", &store.holder("")).is_ok())
}

#[test]
fn removed_socket_or_folder_is_made_again() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    drop(put(&one, "x", &content(1, 5000), KEPT));
    let removals: [&dyn Fn(); 2] = [&|| std::fs::remove_file(&processes.socket).unwrap(), &|| {
        std::fs::remove_dir_all(processes.folder.path()).unwrap()
    }];
    for remove in removals {
        remove();
        until("new clients find it", || is_found(&processes.socket));
        assert!(processes.refused().contains("another daemon"));
        processes.kill_server();
        until("new clients find the next server", || is_found(&processes.socket));
        until("the lock names the supervisor", || {
            std::fs::read_to_string(lock_of(&processes))
                .is_ok_and(|line| line.trim() == processes.supervisor().to_string())
        });
    }
    drop(one);
    assert!(processes.stop());
    assert!(!processes.socket.exists());
}

#[test]
fn orphaned_daemon_makes_its_files_again_for_a_successor() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    drop(put(&one, "x", &content(1, 5000), KEPT));
    let replacement = processes.kill_foreground();
    std::fs::remove_dir_all(processes.folder.path()).unwrap();
    until("both sockets exist", || {
        is_found(&processes.socket) && processes.folder.path().join("cotensor.sock.successor").exists()
    });
    processes.start_again();
    until("the former supervisor has ended", || !with_argument(&processes.socket).contains(&replacement));
    until("the new daemon has the tensor", || is_found(&processes.socket));
    drop(one);
    assert!(processes.stop());
}

#[test]
fn second_daemon_is_refused_without_the_lock_file() {
    let processes = Processes::start();
    drop(put(&processes.connect("one"), "x", &content(1, 5000), KEPT));
    // Stopped processes cannot make the lock again.
    let both = [processes.supervisor(), processes.server()];
    both.iter().for_each(|pid| signal(*pid, Signal::STOP));
    std::fs::remove_file(lock_of(&processes)).unwrap();
    assert!(processes.refused().contains("another daemon"));
    both.iter().for_each(|pid| signal(*pid, Signal::CONT));
    until("the supervisor has the lock again", || {
        std::fs::read_to_string(lock_of(&processes)).is_ok_and(|line| line.trim() == processes.supervisor().to_string())
    });
    assert!(processes.refused().contains(&processes.supervisor().to_string()) && is_found(&processes.socket));
}

#[test]
fn replaced_daemon_ends_with_its_last_client_and_removes_nothing() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    drop(put(&one, "old", &content(1, 5000), KEPT));
    let (supervisor, server) = (processes.supervisor(), processes.server());
    // Stopped processes cannot make their files again before the second daemon does.
    for pid in [supervisor, server] {
        signal(pid, Signal::STOP);
    }
    for file in [&processes.socket, &lock_of(&processes)] {
        std::fs::remove_file(file).unwrap();
    }
    processes.start_again();
    until("the second daemon answers", || ClientStore::connect(Some(&processes.socket), "two").is_ok());
    drop(put(&processes.connect("two"), "x", &content(2, 5000), KEPT));
    for pid in [supervisor, server] {
        signal(pid, Signal::CONT);
    }
    assert_eq!(one.get("old", &one.holder("")).unwrap().bytes().unwrap(), content(1, 5000), "its client continues");
    drop(one);
    until("the first daemon has ended", || children(supervisor).is_empty());
    assert!(is_found(&processes.socket));
    assert_eq!(std::fs::read_to_string(lock_of(&processes)).unwrap().trim(), processes.supervisor().to_string());
    assert!(processes.stop());
}
