//! Doors for the fuzzer, which says what a socket would bring: what it does through them must not panic.

use crate::dispatch::Methods;
use crate::supervisor::Journal;
use crate::{Config, Daemon};
use cotensor_core::{Memory, Result};
use cotensor_memory::MemfdMemory;
use cotensor_rpc::Frame;
use cotensor_store::{MemoryControl, StoreReports};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Memory that the daemon has room for.
const BUDGET_BYTES: u64 = 1 << 20;
/// The length of the descriptors that come with a message.
pub const DESCRIPTOR_BYTES: usize = 4096;

/// A daemon without a socket.
pub struct Unconnected {
    daemon: Arc<Daemon>,
    runtime: tokio::runtime::Runtime,
    sealed: Arc<dyn cotensor_core::Segment>,
}

impl Unconnected {
    /// A daemon with an empty store, where nobody is waited for long.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub fn new() -> Result<Self> {
        let io = |error| cotensor_core::Error::io("starting a runtime", &error);
        let claim_wait_max = Duration::from_millis(1);
        let daemon = Daemon::new(Config { max_memory_bytes: BUDGET_BYTES, claim_wait_max, ..Config::default() })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(io)?;
        let sealed = MemfdMemory.reserve(DESCRIPTOR_BYTES)?.freeze()?;
        Ok(Self { daemon, runtime, sealed })
    }

    /// What a session of their own is answered to these messages, each with `fds` sealed memfds of [`DESCRIPTOR_BYTES`];
    /// nothing to notifications. The session ends then.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub fn answers(&self, bodies: &[&[u8]], fds: usize) -> Result<Vec<Option<Vec<u8>>>> {
        let io = |error| cotensor_core::Error::io("duplicating a descriptor", &error);
        let copy = |_| self.sealed.fd().map(|fd| fd.try_clone_to_owned().map_err(io)).transpose();
        let session = self.daemon.begin_session(None, None);
        let mut answers = Vec::new();
        for body in bodies {
            let fds: Vec<Option<OwnedFd>> = (0..fds).map(copy).collect::<Result<_>>()?;
            let frame = Frame { body: body.to_vec(), fds: fds.into_iter().flatten().collect() };
            answers.push(self.runtime.block_on(Methods::answer(&self.daemon, &session, frame)));
        }
        self.daemon.end_session(&session);
        Ok(answers)
    }

    /// That no session is left, and that what is kept is within the budget and goes when it is wanted.
    ///
    /// # Panics
    /// When it is not so.
    pub fn check_budget(&self) {
        assert!(self.daemon.session_infos().is_empty());
        assert!(self.daemon.store.stats().memory_usage_bytes <= BUDGET_BYTES);
        self.daemon.store.optimize();
        assert_eq!(self.daemon.store.stats().memory_usage_bytes, 0, "nobody leases anything");
    }
}

/// Keeps what a server would tell its supervisor, until it says what no server says; returns how many tensors there are then,
/// after telling a second supervisor everything, which has to know the same.
///
/// # Panics
/// When the second knows something else.
pub fn apply_events(messages: &[&[u8]]) -> usize {
    let fds = || std::fs::File::open("/dev/null").map(OwnedFd::from).into_iter().collect();
    let mut journal = Journal::default();
    for message in messages {
        let Ok(change) = serde_json::from_slice(message) else { break };
        if journal.apply(change, fds()).is_err() {
            break;
        }
    }
    let mut other = Journal::default();
    let told = journal.replay(|change, fds| other.apply(change, fds).map(drop));
    assert!(told.is_ok(), "what is known can be told: {told:?}");
    assert_eq!(other.entries().count(), journal.entries().count());
    assert_eq!(other.segments().count(), journal.segments().count());
    let (mut blocks, mut changes) = (Vec::new(), Vec::new());
    let block = |block, fds| {
        blocks.push((block, fds));
        Ok(())
    };
    let change = |change| {
        changes.push(change);
        Ok(())
    };
    assert!(journal.hand_over(block, change).is_ok());
    let mut successor = Journal::default();
    for (block, fds) in blocks {
        assert!(successor.apply_block(&block, fds).is_ok());
    }
    for change in changes {
        assert!(successor.apply(change, Vec::new()).is_ok());
    }
    assert!(successor.entries().eq(journal.entries()));
    other.entries().count()
}
