use super::fake::Fake;
use super::{Served, is_running};
use crate::support::processes::{Processes, signal};
use crate::support::{Running, until};
use cotensor_client::protocol::{Empty, HttpListen, HttpListenParams, StartModels};
use cotensor_core::ErrorKind;
use cotensor_daemon::Launch;
use cotensor_daemon::ModelsConfig;
use cotensor_memory::process::state;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The file of the model process's socket.
fn v1_socket(socket: &Path) -> std::path::PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".v1");
    path.into()
}

#[test]
fn concurrent_first_requests_start_one_process() {
    let served = Served::start();
    assert_eq!(served.fake.count("start"), 0, "none before the first request");
    let pids: BTreeSet<u32> = std::thread::scope(|scope| {
        let over_http = (0..12).map(|_| scope.spawn(|| served.pid()));
        let on_socket = (0..4).map(|_| scope.spawn(|| served.start_models().unwrap().pid));
        let threads: Vec<_> = over_http.chain(on_socket).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((pids.len(), served.fake.count("start")), (1, 1));
    assert_eq!(served.start_models().unwrap().socket, v1_socket(&served.processes.socket));
}

#[test]
fn killed_process_is_started_again_at_the_next_request() {
    let served = Served::start();
    let first = served.pid();
    signal(first, Signal::KILL);
    until("the process has ended", || !is_running(first));
    let second = served.pid();
    assert_ne!(first, second);
    assert_eq!(served.start_models().unwrap().pid, second);
}

#[test]
fn process_that_stays_stopped_is_replaced_and_one_that_continues_is_not() {
    let served = Served::start();
    let pid = served.pid();
    signal(pid, Signal::STOP);
    until("the process is stopped", || state(pid) == Some('T'));
    signal(pid, Signal::CONT);
    assert_eq!(served.pid(), pid);
    signal(pid, Signal::STOP);
    until("the process is stopped", || state(pid) == Some('T'));
    // The request waits, and is sent to the next process.
    let next = served.pid();
    assert!(next != pid && !is_running(pid));
    assert_eq!(served.fake.count("start"), 2);
}

#[test]
fn request_whose_process_dies_is_sent_to_the_next_one() {
    let served = Served::start();
    assert_eq!(served.request("POST /v1/die-first", "", b"{}").status, 200);
    assert_eq!(served.fake.count("start"), 2);
}

#[test]
fn request_that_ends_two_processes_gets_502() {
    let served = Served::start();
    let answer = served.request("POST /v1/die", "", b"{}");
    assert_eq!((answer.status, answer.code().as_str()), (502, "model_process_ended"));
    assert_eq!(served.fake.count("start"), 2, "it is sent again once");
    until("the process is started again", || served.get("/v1/models").status == 200);
}

#[test]
fn program_that_fails_is_started_with_delays() {
    let served = Served::start();
    served.fake.fail(true);
    for _ in 0..20 {
        let answer = served.get("/v1/models");
        assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"));
        assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
    }
    assert!(served.fake.count("start") < 20);
    let error = served.start_models().unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.message().contains("log"), "{error}");
    served.fake.fail(false);
    until("the process is started again", || served.get("/v1/models").status == 200);
}

#[test]
fn process_ends_with_the_daemon() {
    for stay in [false, true] {
        let mut served = Served::start();
        if stay {
            served.fake.stay(true);
        }
        let pid = served.pid();
        assert!(served.processes.stop());
        until("the model process has ended", || !is_running(pid));
        assert!(!v1_socket(&served.processes.socket).exists());
    }
}

#[test]
fn one_process_serves_after_a_takeover_and_http_continues() {
    for stay in [false, true] {
        let mut served = Served::start();
        if stay {
            // The next server ends it.
            served.fake.stay(true);
        }
        let first = served.pid();
        served.processes.kill_server();
        served.processes.connect("second");
        assert_eq!(
            served.processes.connect("test").request::<HttpListen>(&HttpListenParams::default()).unwrap().address,
            served.http.address
        );
        let second = served.pid();
        assert_ne!(first, second);
        until("the former process has ended", || !is_running(first));
        assert_eq!((served.pid(), served.fake.count("start")), (second, 2));
        assert!(served.processes.stop());
    }
}

#[test]
fn daemon_without_models_says_so() {
    let processes = Processes::start();
    let store = processes.connect("test");
    let error = store.request::<StartModels>(&Empty {}).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("cotensor serve"), "{error}");
    let http = store.request::<HttpListen>(&HttpListenParams::default()).unwrap();
    assert_eq!(http.v1_token_file, None);
    let token = super::read(&http.token_file);
    let answer = super::receive(super::send(http.address, "GET /v1/models", &token, "", b""));
    assert_eq!((answer.status, answer.code().as_str()), (404, "no_models_served"));
}

#[test]
fn model_process_does_not_keep_an_idle_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::in_folder(folder.path());
    let running = Running::start(|config| {
        config.models = Some(ModelsConfig::new(Launch::new(fake.program(), Vec::new())));
        config.idle_exit = Some(Duration::from_millis(10));
    });
    let store = running.connect("test");
    assert_eq!(
        store.request::<HttpListen>(&HttpListenParams::default()).unwrap_err().kind(),
        ErrorKind::Refused,
        "a part of this program"
    );
    let pid = store.request::<StartModels>(&Empty {}).unwrap().pid;
    drop(store);
    until("the daemon and its model process have ended", || !is_running(pid));
    drop(running);
}
