//! The memory of an arena, as the daemon shows it.

use cotensor_client::ClientStore;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// It counts until this value is dropped.
pub(super) struct ReadyMemory {
    store: Arc<ClientStore>,
    bytes: Mutex<u64>,
}

impl ReadyMemory {
    /// No memory yet.
    pub(super) fn new(store: &Arc<ClientStore>) -> Self {
        Self { store: Arc::clone(store), bytes: Mutex::default() }
    }

    /// The memory is `bytes` long now.
    pub(super) fn set(&self, bytes: u64) {
        let mut before = lock(&self.bytes);
        if *before != bytes {
            self.store.change_ready(*before, bytes);
            *before = bytes;
        }
    }

    /// Bounds the unused memory of all parts of the client.
    pub(super) fn bound(&self, now: Instant) {
        self.store.bound_kept_memory(now);
    }
}

impl Drop for ReadyMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}
