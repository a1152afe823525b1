//! A daemon for tests: it runs in the test's process, on a socket of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::state::session::Session;
use crate::{Config, Daemon, Listening};
use cotensor_client::ClientStore;
use cotensor_core::DType;
use cotensor_rpc::server::Outbox;
use cotensor_store::{CopyReason, Lease, Store, StoreReports, TensorSpec};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub use cotensor_core::testing::{WAIT_TIMEOUT, until};

/// A daemon that serves in a thread of this process. Dropping it stops the daemon.
pub struct Running {
    /// The daemon.
    pub daemon: Arc<Daemon>,
    /// Its socket, in a temporary folder.
    pub socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Running {
    /// Starts a daemon with the default configuration after `change`.
    ///
    /// # Panics
    /// When the daemon does not start.
    pub fn start(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let mut config = Config { socket: socket.clone(), ..Config::default() };
        change(&mut config);
        let daemon = Daemon::new(config).unwrap();
        let mut listening = Listening::bind(&socket).unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&daemon);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serving.serve(&mut listening, async { drop(stopped.await) })).unwrap();
        });
        Self { daemon, socket, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    /// Connects a client named `client`.
    ///
    /// # Panics
    /// When the daemon does not answer.
    pub fn connect(&self, client: &str) -> Arc<ClientStore> {
        ClientStore::connect(Some(&self.socket), client).unwrap()
    }

    /// Shuts down the connections of the clients named `client`, as after a call that was not answered in time.
    pub fn shut_down(&self, client: &str) {
        let sessions: Vec<_> = self.daemon.lock().values().cloned().collect();
        let is_of = |session: &&Arc<Session>| session.client().split('[').next() == Some(client);
        sessions.iter().filter(is_of).filter_map(|session| session.outbox()).for_each(Outbox::end);
    }

    /// The calls so far, by method. Those that never happened are left out.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.daemon.counts.calls().filter(|(_, count)| *count > 0).collect()
    }

    /// The number of sessions without a connection whose leases are kept.
    pub fn left_sessions(&self) -> usize {
        self.daemon.disconnected().count()
    }

    /// Waits until the daemon's store holds exactly `bytes`. Clients release asynchronously.
    ///
    /// # Panics
    /// When it does not after [`WAIT_TIMEOUT`].
    pub fn settles_at(&self, bytes: u64) {
        settles_at(&self.daemon, bytes);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether every thread of a process is stopped, or the process is dead. The signal stops its threads one after another: until then, each may
/// run.
pub fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let state = |stat: String| stat.rsplit(") ").next().and_then(|fields| fields.chars().next());
    stats.into_iter().all(|stat| state(stat).is_some_and(|state| matches!(state, 'T' | 't' | 'Z' | 'X')))
}

/// Waits until the daemon's store holds exactly `bytes`.
///
/// # Panics
/// When it does not after [`WAIT_TIMEOUT`].
pub fn settles_at(daemon: &Daemon, bytes: u64) {
    let used = || daemon.store().stats().memory_usage_bytes;
    let start = Instant::now();
    while used() != bytes {
        assert!(start.elapsed() < WAIT_TIMEOUT, "{} bytes in use, {bytes} expected", used());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A tensor of `bytes` elements of type u8.
pub fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { producer: "test".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}

/// Publishes `bytes`.
///
/// # Panics
/// When the store refuses them.
pub fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> Lease {
    let mut reservation = store.reserve(spec(name, bytes.len()), &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}
