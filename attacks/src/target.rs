//! A daemon with a victim.

use crate::{Put, Raw, content, fd_count, put, put_in_block, until};
use cotensor_client::ClientStore;
use cotensor_daemon::{Config, Daemon, Embedded};
use cotensor_store::{Lease, StoreReports, TensorStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The victim's tensors, whose names must not be disclosed.
const SECRETS: [(&str, usize); 3] = [("secret-small", 4096), ("secret-large", 1 << 20), ("secret-block", 1 << 20)];

/// A daemon, and a victim with tensors in it.
pub struct Target {
    victim: Arc<ClientStore>,
    held: Vec<Lease>,
    usage: Usage,
    embedded: Embedded,
    /// Socket of the daemon.
    pub socket: PathBuf,
    _folder: tempfile::TempDir,
}

/// Resource usage of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    tensors: usize,
    bytes: u64,
    leases: usize,
    sessions: usize,
    fds: usize,
}

impl Target {
    /// Starts a daemon, configured by `change`.
    pub fn start(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let mut config = Config { socket: socket.clone(), ..Config::default() };
        change(&mut config);
        let embedded = Embedded::start(config).unwrap();
        let victim = ClientStore::connect(Some(&socket), "victim").unwrap();
        let publish = |(name, bytes)| match name {
            "secret-block" => put_in_block(&*victim, name, &content(bytes)),
            _ => put(&*victim, name, &content(bytes)),
        };
        let held = SECRETS.map(publish).into();
        let usage = Usage { tensors: 0, bytes: 0, leases: 0, sessions: 0, fds: 0 };
        let mut target = Self { victim, held, usage, embedded, socket, _folder: folder };
        target.settle();
        target.usage = target.measure();
        target
    }

    /// Waits until the usage is stable: threads open descriptors when they first run.
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

    /// Connects a well-behaved client.
    pub fn connect(&self, client: &str) -> Arc<ClientStore> {
        ClientStore::connect(Some(&self.socket), client).unwrap()
    }

    /// Connects a raw client, which has sent its hello.
    pub fn raw(&self) -> Raw {
        let mut raw = Raw::connect(&self.socket);
        raw.hello();
        raw
    }

    /// The victim's leases.
    pub fn secrets(&self) -> &[Lease] {
        &self.held
    }

    fn measure(&self) -> Usage {
        let stats = self.daemon().store().stats();
        let held = self.daemon().store().diagnostics().tensors;
        let leases = held.iter().flat_map(|tensor| tensor.holders.values()).map(|&count| count as usize).sum();
        let sessions = self.victim.request::<cotensor_client::protocol::Sessions>(&Default::default()).unwrap();
        Usage {
            tensors: stats.total_tensors,
            bytes: stats.memory_usage_bytes,
            leases,
            sessions: sessions.sessions.len(),
            fds: fd_count(),
        }
    }

    /// Asserts that the victim's data is unchanged, that other clients can put and get, and that nothing of the
    /// attacker is left. The attacker's sockets and descriptors must be closed before.
    pub fn assert_unharmed(&self) {
        self.assert_serves();
        until(
            "all of the attacker's resources are freed",
            || self.measure() == self.usage,
            || format!("{:?} instead of {:?}", self.measure(), self.usage),
        );
    }

    /// Asserts that the victim's data is unchanged and that other clients are served.
    pub fn assert_serves(&self) {
        let other = self.connect("bystander");
        for (lease, (name, bytes)) in self.held.iter().zip(SECRETS) {
            assert!(lease.bytes().unwrap() == content(bytes), "the victim's view changed");
            let read = other.get(name, &other.holder("")).unwrap();
            assert!(read.bytes().unwrap() == content(bytes), "what others read changed");
        }
        for (put, bytes) in [(put as Put, 100), (put as Put, 1 << 20), (put_in_block as Put, 1 << 20)] {
            let made = put(&*other, "bystander", &content(bytes));
            assert!(self.victim.get("bystander", &self.victim.holder("")).unwrap().bytes().unwrap() == content(bytes));
            drop(made);
        }
    }
}
