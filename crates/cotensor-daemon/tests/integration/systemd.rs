//! A service manager holds what there is while none of the daemon's processes lives. It is played by the test.

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
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

/// What systemd would know and hold.
#[derive(Default)]
struct Known {
    held: BTreeMap<String, Vec<OwnedFd>>,
    ready: usize,
    stopping: usize,
}

struct Manager {
    folder: tempfile::TempDir,
    known: Arc<Mutex<Known>>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let known: Arc<Mutex<Known>> = Arc::default();
        let listening = Arc::clone(&known);
        std::thread::spawn(move || {
            loop {
                hear(&socket, &listening);
            }
        });
        Self { folder, known }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("cotensor.sock")
    }

    /// Starts the daemon with all that is held.
    fn start(&self) -> Child {
        let mut mappings = Vec::new();
        let mut names = Vec::new();
        for (name, fds) in &self.known.lock().unwrap().held {
            for fd in fds {
                mappings.push(FdMapping { parent_fd: fd.try_clone().unwrap(), child_fd: 3 + names.len() as i32 });
                names.push(name.clone());
            }
        }
        // The variable is to name the daemon's own process, which only that can know.
        let mut command = Command::new("sh");
        command
            .args(["-c", "LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cotensor-daemon")])
            .arg(self.socket())
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .fd_mappings(mappings)
            .unwrap();
        command.spawn().unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.known.lock().unwrap().held.keys().cloned().collect()
    }

    fn segments(&self) -> usize {
        self.names().iter().filter(|name| name.starts_with("segment-")).count()
    }

    /// Whether the journal that the manager holds has a version of a tensor.
    fn journal_has(&self, name: &str, version: u64) -> bool {
        let known = self.known.lock().unwrap();
        let journal = known.held.iter().find(|(held, _)| held.starts_with("journal-")).map(|(_, fds)| &fds[0]);
        let Some(journal) = journal else { return false };
        let journal = File::from(journal.try_clone().unwrap());
        let mut bytes = vec![0; journal.metadata().unwrap().len() as usize];
        journal.read_exact_at(&mut bytes, 0).unwrap();
        let events = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let entries = events.map(|mut event| event["published"]["entry"].take());
        entries.into_iter().any(|entry| entry["spec"]["name"] == name && entry["id"]["version"] == version)
    }

    fn until_ready(&self, times: usize) {
        until("it is ready", || self.known.lock().unwrap().ready >= times);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // A test that failed leaves them running.
        for sign in [Signal::STOP, Signal::KILL] {
            with_argument(&self.socket()).into_iter().for_each(|pid| signal(pid, sign));
        }
    }
}

/// One message.
fn hear(socket: &UnixDatagram, known: &Mutex<Known>) {
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
            let held = known.held.entry(name.to_owned()).or_default();
            fds.retain(|fd| !held.iter().any(|other| same(fd, other)));
            held.append(&mut fds);
        }
        (None, Some("1"), Some(name)) => drop(known.held.remove(name)),
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
    until("all are dead", || with_argument(socket).is_empty());
}

#[test]
fn everything_outlives_all_processes_and_ends_with_a_clean_stop() {
    let manager = Manager::new();
    let mut daemon = manager.start();
    manager.until_ready(1);
    let store = ClientStore::connect(Some(&manager.socket()), "one").unwrap();
    for (number, bytes) in [(1, 100), (2, 1 << 20), (3, 2 << 20)] {
        drop(put(&store, &format!("t{number}"), &content(number, bytes), KEPT));
    }
    until("all is held", || manager.segments() == 3);
    store.remove("t3").unwrap();
    until("what is gone is held no more", || manager.segments() == 2);
    assert!(["listener", "lock"].iter().all(|name| manager.names().contains(&(*name).to_owned())));

    for round in 0..3 {
        kill_all(&mut daemon, &manager.socket());
        assert!(manager.socket().exists());
        if round == 1 {
            // A folder that was cleaned up meanwhile.
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
        // What comes after a restart is held as well.
        drop(put(&store, "t1", &content(1, 100), KEPT));
        drop(put(&store, "more", &content(round as u64, 1 << 20), KEPT));
        assert_eq!(manager.names().iter().filter(|name| name.starts_with("journal-")).count(), 1);
        // The supervisor writes events to the journal after the client has its answer. Events that it has not written are lost.
        until("the last event is in the journal", || manager.journal_has("more", round as u64 + 1));
    }
    // The server alone: the supervisor brings it back, and says so.
    signal(children(daemon.id())[0], Signal::KILL);
    manager.until_ready(5);
    let store = ClientStore::connect(Some(&manager.socket()), "last").unwrap();
    assert_eq!(store.get("more", &store.holder("")).unwrap().bytes().unwrap(), content(2, 1 << 20));

    signal(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    until("it was told of the end", || manager.known.lock().unwrap().stopping == 1);
    assert!(!manager.socket().exists());
    // Whoever is started with what is left starts with nothing, and has it let go.
    let mut next = manager.start();
    manager.until_ready(6);
    let store = ClientStore::connect(Some(&manager.socket()), "new").unwrap();
    assert!(store.get("more", &store.holder("")).is_err());
    until("only what is used is held", || manager.segments() == 0);
    signal(next.id(), Signal::TERM);
    assert!(next.wait().unwrap().success());
}
