//! The descriptor store of systemd keeps the state while no process of the daemon is alive. The test plays systemd.

use crate::support::processes::{children, content, put, signal, with_argument};
use crate::support::until;
use command_fds::{CommandFdExt, FdMapping};
use cotensor_client::ClientStore;
use cotensor_store::{Retention, TensorStore};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

/// The state of systemd.
#[derive(Default)]
struct ManagerState {
    fds: BTreeMap<String, Vec<OwnedFd>>,
    ready: usize,
    stopping: usize,
}

struct Manager {
    folder: tempfile::TempDir,
    known: Arc<Mutex<ManagerState>>,
    /// Arguments of the daemon.
    arguments: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let known: Arc<Mutex<ManagerState>> = Arc::default();
        let listening = Arc::clone(&known);
        std::thread::spawn(move || {
            loop {
                on_message(&socket, &listening);
            }
        });
        Self { folder, known, arguments: Vec::new() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("cotensor.sock")
    }

    /// Starts the daemon with all stored descriptors.
    fn start(&self) -> Child {
        let mut mappings = Vec::new();
        let mut names = Vec::new();
        for (name, fds) in &self.known.lock().unwrap().fds {
            for fd in fds {
                mappings.push(FdMapping { parent_fd: fd.try_clone().unwrap(), child_fd: 3 + names.len() as i32 });
                names.push(name.clone());
            }
        }
        // LISTEN_PID is the daemon's own process, so a shell sets it.
        let mut command = Command::new("sh");
        command
            .args(["-c", "LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cotensor-daemon")])
            .args(&self.arguments)
            .arg(self.socket())
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .fd_mappings(mappings)
            .unwrap();
        command.spawn().unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.known.lock().unwrap().fds.keys().cloned().collect()
    }

    fn segments(&self) -> usize {
        self.names().iter().filter(|name| name.starts_with("segment-")).count()
    }

    /// Whether the journal that the manager holds has a version of a tensor.
    fn journal_has(&self, name: &str, version: u64) -> bool {
        let known = self.known.lock().unwrap();
        let journal = known.fds.iter().find(|(held, _)| held.starts_with("journal-")).map(|(_, fds)| &fds[0]);
        let Some(journal) = journal else { return false };
        let journal = File::from(journal.try_clone().unwrap());
        let mut bytes = vec![0; journal.metadata().unwrap().len() as usize];
        journal.read_exact_at(&mut bytes, 0).unwrap();
        let events = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let entries = events.map(|mut event| event["published"]["entry"].take());
        entries.into_iter().any(|entry| entry["spec"]["name"] == name && entry["id"]["version"] == version)
    }

    fn until_ready(&self, times: usize) {
        until("the daemon is ready", || self.known.lock().unwrap().ready >= times);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // A failed test leaves processes running.
        for sign in [Signal::STOP, Signal::KILL] {
            with_argument(&self.socket()).into_iter().for_each(|pid| signal(pid, sign));
        }
    }
}

/// Handles one message.
fn on_message(socket: &UnixDatagram, known: &Mutex<ManagerState>) {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let text = std::str::from_utf8(&text[..received.bytes]).unwrap();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let mut known = known.lock().unwrap();
    match (field("FDSTORE"), field("FDSTOREREMOVE"), field("FDNAME")) {
        (Some("1"), None, Some(name)) => {
            assert_eq!(fds.len(), 1, "{text}");
            let same = |a: &OwnedFd, b: &OwnedFd| {
                let (a, b) = (rustix::fs::fstat(a).unwrap(), rustix::fs::fstat(b).unwrap());
                (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
            };
            let held = known.fds.entry(name.to_owned()).or_default();
            fds.retain(|fd| !held.iter().any(|other| same(fd, other)));
            held.append(&mut fds);
        }
        (None, Some("1"), Some(name)) => drop(known.fds.remove(name)),
        _ => {}
    }
    known.ready += usize::from(field("READY") == Some("1"));
    known.stopping += usize::from(field("STOPPING") == Some("1"));
}

/// Kills every process at once, as systemd does when the main one dies.
fn kill_all(supervisor: &mut Child, socket: &Path) {
    for sign in [Signal::STOP, Signal::KILL] {
        for pid in with_argument(socket) {
            signal(pid, sign);
        }
    }
    supervisor.wait().unwrap();
    until("all processes are dead", || with_argument(socket).is_empty());
}

#[test]
fn tensors_outlive_all_processes_until_a_clean_stop() {
    let manager = Manager::new();
    let mut daemon = manager.start();
    manager.until_ready(1);
    let store = ClientStore::connect(Some(&manager.socket()), "one").unwrap();
    for (number, bytes) in [(1, 100), (2, 1 << 20), (3, 2 << 20)] {
        drop(put(&store, &format!("t{number}"), &content(number, bytes), KEPT));
    }
    until("three segments are stored", || manager.segments() == 3);
    store.remove("t3").unwrap();
    until("the freed segment is removed", || manager.segments() == 2);
    assert!(["listener", "lock", "sessions"].iter().all(|name| manager.names().contains(&(*name).to_owned())));

    for round in 0..3 {
        kill_all(&mut daemon, &manager.socket());
        assert!(manager.socket().exists());
        if round == 1 {
            // The socket's file was removed in the meantime.
            std::fs::remove_file(manager.socket()).unwrap();
        }
        daemon = manager.start();
        manager.until_ready(2 + round);
        let store = ClientStore::connect(Some(&manager.socket()), "later").unwrap();
        for (number, bytes) in [(1, 100), (2, 1 << 20)] {
            let lease = store.get(&format!("t{number}"), &store.holder("")).unwrap();
            assert_eq!(lease.bytes().unwrap(), content(number, bytes), "round {round}");
        }
        assert!(store.get("t3", &store.holder("")).is_err());
        // Tensors from after a restart are stored as well.
        drop(put(&store, "t1", &content(1, 100), KEPT));
        drop(put(&store, "more", &content(round as u64, 1 << 20), KEPT));
        assert_eq!(manager.names().iter().filter(|name| name.starts_with("journal-")).count(), 1);
        // The supervisor writes events to the journal after the client has its answer. Events that it has not written
        // are lost.
        until("the last event is in the journal", || manager.journal_has("more", round as u64 + 1));
    }
    // Only the server dies: the supervisor starts another one and reports it.
    signal(children(daemon.id())[0], Signal::KILL);
    manager.until_ready(5);
    let store = ClientStore::connect(Some(&manager.socket()), "last").unwrap();
    assert_eq!(store.get("more", &store.holder("")).unwrap().bytes().unwrap(), content(2, 1 << 20));

    signal(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    until("the stop was reported", || manager.known.lock().unwrap().stopping == 1);
    until("the journal is removed", || !manager.names().iter().any(|name| name.starts_with("journal-")));
    assert!(!manager.socket().exists());
    // A daemon that starts with the remaining descriptors has no tensors and removes the descriptors.
    let mut next = manager.start();
    manager.until_ready(6);
    let store = ClientStore::connect(Some(&manager.socket()), "new").unwrap();
    assert!(store.get("more", &store.holder("")).is_err());
    until("unused segments are removed", || manager.segments() == 0);
    signal(next.id(), Signal::TERM);
    assert!(next.wait().unwrap().success());
}

#[test]
fn socket_of_the_manager_starts_the_daemon_and_stays() {
    let manager = Manager::new();
    let listener = UnixListener::bind(manager.socket()).unwrap();
    manager.known.lock().unwrap().fds.insert("activated".to_owned(), vec![listener.into()]);
    // A client connects before the daemon is there.
    let socket = manager.socket();
    let early = std::thread::spawn(move || {
        let store = ClientStore::connect(Some(&socket), "early").unwrap();
        drop(put(&store, "x", &content(1, 1 << 20), KEPT));
    });
    let mut daemon = manager.start();
    manager.until_ready(1);
    early.join().unwrap();
    until("the tensor is in the journal", || manager.journal_has("x", 1));
    kill_all(&mut daemon, &manager.socket());
    daemon = manager.start();
    manager.until_ready(2);
    let store = ClientStore::connect(Some(&manager.socket()), "later").unwrap();
    assert_eq!(store.get("x", &store.holder("")).unwrap().bytes().unwrap(), content(1, 1 << 20));
    drop(store);
    for round in 0..2 {
        signal(daemon.id(), Signal::TERM);
        assert!(daemon.wait().unwrap().success());
        assert!(manager.socket().exists(), "the manager goes on listening");
        daemon = manager.start();
        manager.until_ready(3 + round);
        ClientStore::connect(Some(&manager.socket()), "last").unwrap();
    }
    signal(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn http_request_alone_starts_the_daemon() {
    let mut manager = Manager::new();
    let socket = UnixListener::bind(manager.socket()).unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap();
    manager.arguments = vec![format!("--listen={address}")];
    // systemd passes the sockets of a unit under one name.
    manager.known.lock().unwrap().fds.insert("activated".to_owned(), vec![http.into(), socket.into()]);
    for round in 1..=2 {
        // The client connects before the daemon is there.
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut daemon = manager.start();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
        manager.until_ready(round);
        signal(daemon.id(), Signal::TERM);
        assert!(daemon.wait().unwrap().success());
    }
}
