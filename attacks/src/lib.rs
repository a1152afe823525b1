//! What the attempts in `tests/` have in common: a daemon to attack, a client of it that must not notice, and a client
//! that keeps to no rule.
//!
//! Every attempt ends in [`Target::is_unharmed`]: the victim reads what it read before, others are served, and nothing of
//! the attacker is left.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod http;
mod raw;

pub use http::{Answer, Web};
pub use raw::Raw;

use cotensor_client::ClientStore;
use cotensor_core::DType;
use cotensor_daemon::{Config, Daemon, Embedded};
use cotensor_store::{CopyReason, Lease, Store, StoreReports, TensorSpec, TensorStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take that is waited for. Far more than it does.
pub const SOON: Duration = Duration::from_secs(60);
/// Patience of a daemon whose patience is to end.
pub const SHORT: Duration = Duration::from_millis(300);
/// The victim's tensors: their names are nobody else's to learn.
const SECRETS: [(&str, usize); 2] = [("secret-small", 4096), ("secret-large", 1 << 20)];

/// A daemon, and a victim who has tensors there.
pub struct Target {
    victim: Arc<ClientStore>,
    held: Vec<Lease>,
    level: Level,
    embedded: Embedded,
    /// Where the daemon listens.
    pub socket: PathBuf,
    _folder: tempfile::TempDir,
}

/// What the daemon has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    tensors: usize,
    bytes: u64,
    leases: usize,
    sessions: usize,
    fds: usize,
}

impl Target {
    /// A daemon, configured by `change`.
    pub fn start(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let mut config = Config { socket: socket.clone(), ..Config::default() };
        change(&mut config);
        let embedded = Embedded::start(config).unwrap();
        let victim = ClientStore::connect(Some(&socket), "victim").unwrap();
        let held = SECRETS.iter().map(|(name, bytes)| put(&*victim, name, &content(*bytes))).collect();
        let level = Level { tensors: 0, bytes: 0, leases: 0, sessions: 0, fds: 0 };
        let mut target = Self { victim, held, level, embedded, socket, _folder: folder };
        target.settle();
        target.level = target.measure();
        target
    }

    /// Waits for what starts by itself: threads open what they need when they first run.
    fn settle(&self) {
        let mut before = self.measure();
        let mut same = 0;
        while same < 5 {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.measure();
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
    }

    /// The daemon.
    pub fn daemon(&self) -> &Arc<Daemon> {
        self.embedded.daemon()
    }

    /// A client that keeps to the rules.
    pub fn connect(&self, client: &str) -> Arc<ClientStore> {
        ClientStore::connect(Some(&self.socket), client).unwrap()
    }

    /// A client that does not, and has said hello.
    pub fn raw(&self) -> Raw {
        let mut raw = Raw::connect(&self.socket);
        raw.hello();
        raw
    }

    /// The victim's leases.
    pub fn secrets(&self) -> &[Lease] {
        &self.held
    }

    fn measure(&self) -> Level {
        let stats = self.daemon().store().stats();
        let held = self.daemon().store().diagnostics().tensors;
        let leases = held.iter().flat_map(|tensor| tensor.holders.values()).map(|&count| count as usize).sum();
        let sessions = self.victim.ask::<cotensor_client::protocol::Sessions>(&Default::default()).unwrap();
        Level {
            tensors: stats.total_tensors,
            bytes: stats.memory_usage_bytes,
            leases,
            sessions: sessions.sessions.len(),
            fds: fd_count(),
        }
    }

    /// The victim's data is as it was, others put and get as before, and nothing of the attacker is left: all its
    /// sockets and descriptors have to be closed here.
    pub fn is_unharmed(&self) {
        self.serves();
        until(
            "nothing of the attacker is left",
            || self.measure() == self.level,
            || format!("{:?} instead of {:?}", self.measure(), self.level),
        );
    }

    /// The victim's data is as it was, and others are served.
    pub fn serves(&self) {
        let other = self.connect("bystander");
        for (lease, (name, bytes)) in self.held.iter().zip(SECRETS) {
            assert!(lease.bytes().unwrap() == content(bytes), "the victim's own view changed");
            let read = other.get(name, &other.holder("")).unwrap();
            assert!(read.bytes().unwrap() == content(bytes), "what others read changed");
        }
        for bytes in [100, 1 << 20] {
            let made = put(&*other, "bystander", &content(bytes));
            assert!(self.victim.get("bystander", &self.victim.holder("")).unwrap().bytes().unwrap() == content(bytes));
            drop(made);
        }
    }
}

/// Waits until `done`; fails with what `seen` says.
pub fn until(what: &str, done: impl Fn() -> bool, seen: impl Fn() -> String) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < SOON, "{what}: not so after a minute: {}", seen());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// That a text names none of the victim's tensors.
pub fn tells_nothing(text: &str) {
    assert!(!text.contains("secret"), "{text}");
}

/// Bytes that are easy to know again.
pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

/// Publishes `bytes`.
pub fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> Lease {
    let mut reservation = store.reserve(spec(name, bytes.len()), &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

/// A tensor of bytes that goes with its last lease.
pub fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { producer: "attack".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}

/// Descriptors that this process, and so the daemon in it, has open.
pub fn fd_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
