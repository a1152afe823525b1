//! Sessions whose connection has ended although their client lives: a call was not answered in time, or its socket was shut down.
//!
//! Such a client still has its mappings. Memory that is used again must keep its bytes as long as they exist, so the session's leases stay
//! until the client has resumed them in another session or has released the session's lock. So do its shares of devices: the client
//! still computes in their memory.

use super::resources::LeaseEntry;
use crate::state::broker::Share;
use crate::state::journal::SessionClient;
use cotensor_client::protocol::Id;
use cotensor_core::sync::lock;
use cotensor_store::{Holder, TensorId};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The first and the longest interval between two checks of a lock. The kernel closes the descriptors of a killed process one after another.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// The pause after a check of all sessions, as a multiple of its time: many sessions take a tenth of a processor.
const PAUSE_FACTOR: u32 = 9;
/// The most sessions that wait, as a multiple of that from which on clients that have some of them cannot begin another one.
const SESSIONS_FACTOR: usize = 4;

/// The leases of a session without a connection, and its shares of devices. Dropping them releases them.
pub(crate) struct LeftSession {
    pub(crate) session: u64,
    pub(crate) client: SessionClient,
    pub(super) leases: HashMap<(TensorId, Holder), LeaseEntry>,
    pub(super) shares: Vec<Share>,
}

impl LeftSession {
    /// The leased tensors.
    pub(crate) fn tensors(&self) -> Vec<Id> {
        self.leases.keys().map(|(id, _)| (*id).into()).collect()
    }
}

/// Sessions without a connection whose leases are kept.
pub(crate) struct Disconnected {
    waiting: Mutex<Waiting>,
    /// The number of sessions from which on clients that have some of them cannot begin another one.
    many: usize,
}

#[derive(Default)]
struct Waiting {
    sessions: HashMap<u64, LeftSession>,
    /// Whether a thread checks all sessions.
    is_watched: bool,
    /// Whether the daemon stops.
    stopped: bool,
}

impl Disconnected {
    pub(crate) fn new(many: usize) -> Self {
        Self { waiting: Mutex::default(), many }
    }

    /// Whether the client of process `pid` has to drop mapped tensors before it begins another session.
    pub(crate) fn is_full_for(&self, pid: i32) -> bool {
        let waiting = lock(&self.waiting);
        waiting.sessions.len() >= self.many && waiting.sessions.values().any(|left| left.client.pid == pid)
    }

    /// Adds leases to those that are kept.
    ///
    /// # Errors
    /// The leases when there are too many sessions, or the daemon stops.
    pub(crate) fn add(&self, left: LeftSession) -> Result<(), LeftSession> {
        let mut waiting = lock(&self.waiting);
        if waiting.stopped || waiting.sessions.len() >= SESSIONS_FACTOR.saturating_mul(self.many) {
            return Err(left);
        }
        waiting.sessions.insert(left.session, left);
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count(&self) -> usize {
        lock(&self.waiting).sessions.len()
    }

    pub(crate) fn has(&self, session: u64) -> bool {
        lock(&self.waiting).sessions.contains_key(&session)
    }

    /// Keeps the leases of `session` until `is_open` is false for it, or [`take`](Self::take) has them. This thread checks that often at first. After
    /// that, one such thread checks all sessions.
    pub(crate) fn watch(
        &self,
        session: u64,
        is_open: impl Fn(u64, &SessionClient) -> bool,
        release: impl Fn(LeftSession),
    ) {
        let mut interval = CHECK_INTERVAL_MIN;
        while interval < CHECK_INTERVAL_MAX {
            let Some(client) = lock(&self.waiting).sessions.get(&session).map(|left| left.client) else { return };
            if !is_open(session, &client) {
                return self.take(|number, _| number == session).into_iter().for_each(release);
            }
            std::thread::sleep(interval);
            interval *= 2;
        }
        if std::mem::replace(&mut lock(&self.waiting).is_watched, true) {
            return;
        }
        while let Some(all) = self.all_or_end() {
            let start = Instant::now();
            let over: Vec<u64> =
                all.iter().filter(|(number, client)| !is_open(*number, client)).map(|(number, _)| *number).collect();
            let pause = (PAUSE_FACTOR * start.elapsed()).max(CHECK_INTERVAL_MAX);
            if !over.is_empty() {
                self.take(|number, _| over.contains(&number)).into_iter().for_each(&release);
            }
            std::thread::sleep(pause);
        }
    }

    /// The sessions to check; none when the watch ends.
    fn all_or_end(&self) -> Option<Vec<(u64, SessionClient)>> {
        let mut waiting = lock(&self.waiting);
        waiting.is_watched = !waiting.sessions.is_empty();
        waiting.is_watched.then(|| waiting.sessions.values().map(|left| (left.session, left.client)).collect())
    }

    /// Takes out the leases of those sessions that `is_over` selects.
    pub(crate) fn take(&self, is_over: impl Fn(u64, &SessionClient) -> bool) -> Vec<LeftSession> {
        let mut waiting = lock(&self.waiting);
        waiting.sessions.extract_if(|session, left| is_over(*session, &left.client)).map(|(_, left)| left).collect()
    }

    /// Takes out the shares of devices of those sessions that `is_former` selects.
    pub(crate) fn take_shares(&self, is_former: impl Fn(u64, &SessionClient) -> bool) -> Vec<Share> {
        let mut waiting = lock(&self.waiting);
        let former = waiting.sessions.values_mut().filter(|left| is_former(left.session, &left.client));
        former.flat_map(|left| std::mem::take(&mut left.shares)).collect()
    }

    /// Releases all leases, now and later.
    pub(crate) fn stop(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.stopped = true;
        let all = std::mem::take(&mut waiting.sessions);
        drop(waiting);
        drop(all);
    }
}
