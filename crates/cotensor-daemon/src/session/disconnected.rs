//! Sessions whose connection has ended although their client lives: a call was not answered in time, or its socket was shut down.
//!
//! Such a client still has its mappings. Memory that is used again must keep its bytes as long as they exist, so the session's leases stay
//! until the client has resumed them in another session or has released the session's lock.

use super::resources::LeaseEntry;
use crate::supervisor::SessionClient;
use cotensor_core::sync::lock;
use cotensor_store::{Holder, TensorId};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The first and the longest interval between two checks of a lock. The kernel closes the descriptors of a killed process one after another.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// The leases of a session without a connection. Dropping them releases them.
pub(crate) struct LeftLeases {
    pub(crate) session: u64,
    pub(crate) client: SessionClient,
    pub(super) _leases: HashMap<(TensorId, Holder), LeaseEntry>,
}

/// Sessions without a connection whose leases are kept.
#[derive(Default)]
pub(crate) struct Disconnected {
    sessions: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    clients: HashMap<u64, SessionClient>,
    /// Whether the daemon stops.
    stopped: bool,
}

impl Disconnected {
    /// Keeps leases until their session is over: until `is_open` is false, another session has resumed it, or the daemon stops. False when
    /// `max` sessions wait already: the leases are released at once.
    pub(crate) fn keep(&self, left: LeftLeases, max: usize, is_open: impl Fn() -> bool) -> bool {
        let (session, mut interval) = (left.session, CHECK_INTERVAL_MIN);
        let mut waiting = lock(&self.sessions);
        if waiting.clients.len() >= max {
            return false;
        }
        waiting.clients.insert(session, left.client);
        while !waiting.stopped && waiting.clients.contains_key(&session) && is_open() {
            let waited = self.changed.wait_timeout(waiting, interval);
            waiting = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            interval = (2 * interval).min(CHECK_INTERVAL_MAX);
        }
        waiting.clients.remove(&session);
        drop(waiting);
        drop(left);
        true
    }

    /// Ends the wait for those sessions that `is_over` selects.
    pub(crate) fn end(&self, is_over: impl Fn(u64, &SessionClient) -> bool) {
        lock(&self.sessions).clients.retain(|session, client| !is_over(*session, client));
        self.changed.notify_all();
    }

    /// Ends all waits, now and later.
    pub(crate) fn stop(&self) {
        lock(&self.sessions).stopped = true;
        self.changed.notify_all();
    }
}
