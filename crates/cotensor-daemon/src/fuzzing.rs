//! Entry points for fuzz targets: messages of clients and events of servers. They must not panic.

use crate::dispatch::Methods;
use crate::handlers;
use crate::{Config, Daemon};
use cotensor_core::{Memory, Result};
use cotensor_memory::MemfdMemory;
use cotensor_memory::process::duplicate_fds;
use cotensor_rpc::Frame;
use cotensor_store::{MemoryControl, StoreReports};
use cotensor_supervisor::Journal;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The memory budget of the daemon.
const BUDGET_BYTES: u64 = 1 << 20;
/// The length in bytes of the segments whose descriptors come with a message.
pub const DESCRIPTOR_BYTES: usize = 4096;

/// A daemon without a socket.
pub struct Unconnected {
    daemon: Arc<Daemon>,
    methods: Arc<Methods>,
    runtime: tokio::runtime::Runtime,
    sealed: Arc<dyn cotensor_core::Segment>,
}

impl Unconnected {
    /// A daemon with an empty store and a claim wait of 1 ms.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub fn new() -> Result<Self> {
        let io = |error| cotensor_core::Error::io("starting a runtime", &error);
        let claim_wait_max = Duration::from_millis(1);
        let daemon = Daemon::new(Config { max_memory_bytes: BUDGET_BYTES, claim_wait_max, ..Config::default() })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(io)?;
        let sealed = MemfdMemory.reserve(DESCRIPTOR_BYTES)?.freeze()?;
        Ok(Self { daemon, methods: Arc::new(handlers::methods()), runtime, sealed })
    }

    /// The answers to messages in a new session, which then ends; `None` for notifications. Each message has `fds`
    /// descriptors of sealed memfds of [`DESCRIPTOR_BYTES`].
    ///
    /// # Errors
    /// `Io` when the limit of open descriptors is reached.
    pub fn answers(&self, bodies: &[&[u8]], fds: usize) -> Result<Vec<Option<Vec<u8>>>> {
        let io = |error| cotensor_core::Error::io("duplicating a descriptor", &error);
        let copy = |_| self.sealed.fd().map(|fd| fd.try_clone_to_owned().map_err(io)).transpose();
        let session = self.daemon.begin_session(None, None);
        let mut answers = Vec::new();
        for body in bodies {
            let fds: Vec<Option<OwnedFd>> = (0..fds).map(copy).collect::<Result<_>>()?;
            let frame = Frame { body: body.to_vec(), fds: fds.into_iter().flatten().collect() };
            answers.push(self.runtime.block_on(self.methods.answer(&self.daemon, &session, frame)));
        }
        drop(self.daemon.end_session(&session));
        Ok(answers)
    }

    /// Checks that no session is left, that the store is within its budget, and that it can be emptied.
    ///
    /// # Panics
    /// When a check fails.
    pub fn check_budget(&self) {
        assert!(self.daemon.session_infos().is_empty());
        assert!(self.daemon.store.stats().memory_usage_bytes <= BUDGET_BYTES);
        self.daemon.store.optimize();
        assert_eq!(self.daemon.store.stats().memory_usage_bytes, 0, "no tensor is leased");
    }
}

/// Applies a server's events to a journal, up to the first invalid one. Then copies the journal to another process's,
/// as events and as a handover. Returns the number of tensors.
///
/// # Panics
/// When a copy differs.
pub fn apply_events(messages: &[&[u8]]) -> usize {
    let fds = || std::fs::File::open("/dev/null").map(OwnedFd::from).into_iter().collect();
    let mut journal = Journal::default();
    for message in messages {
        let Ok(event) = serde_json::from_slice(message) else { break };
        if journal.apply(event, fds()).is_err() {
            break;
        }
    }
    let mut other = Journal::default();
    let replayed = journal.replay(|event, fd| other.apply(event, duplicate_fds(fd)?).map(drop));
    assert!(replayed.is_ok(), "a journal can be replayed: {replayed:?}");
    assert_eq!(other.entries().count(), journal.entries().count());
    assert_eq!(other.segments().count(), journal.segments().count());
    let (mut blocks, mut events) = (Vec::new(), Vec::new());
    let block = |block, fds| {
        blocks.push((block, fds));
        Ok(())
    };
    let event = |event| {
        events.push(event);
        Ok(())
    };
    assert!(journal.hand_over(block, event).is_ok());
    let mut successor = Journal::default();
    for (block, fds) in blocks {
        let fds = duplicate_fds(fds);
        assert!(fds.and_then(|fds| successor.apply_block(&block, fds)).is_ok());
    }
    for event in events {
        assert!(successor.apply(event, Vec::new()).is_ok());
    }
    assert!(successor.entries().eq(journal.entries()));
    other.entries().count()
}
