//! Memory of calls that this process keeps ready, as the daemon shows it.

use super::client_store::ClientStore;
use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};

/// All of a client, in bytes.
#[derive(Default)]
pub(super) struct ReadyBytes(Mutex<u64>);

impl ReadyBytes {
    /// Reports it in a new session.
    pub(super) fn reopen(&self, session: &Session) {
        let bytes = *lock(&self.0);
        if bytes > 0 {
            session.notify::<p::RecordReady>(&p::ReadyParams { bytes });
        }
    }
}

/// The memory of one connection. It counts until this value is dropped.
pub struct ReadyMemory {
    store: Arc<ClientStore>,
    bytes: Mutex<u64>,
}

impl ReadyMemory {
    /// No memory yet.
    pub fn new(store: &Arc<ClientStore>) -> Self {
        Self { store: Arc::clone(store), bytes: Mutex::default() }
    }

    /// The memory is `bytes` long now.
    pub fn set(&self, bytes: u64) {
        let mut before = lock(&self.bytes);
        if *before == bytes {
            return;
        }
        let mut all = lock(&self.store.reconnector().ready.0);
        *all = *all - *before + bytes;
        *before = bytes;
        // Under the lock: the daemon gets the totals in their order.
        self.store.notify::<p::RecordReady>(&p::ReadyParams { bytes: *all });
    }
}

impl Drop for ReadyMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}
