//! The parts of a client that keep memory for later tensors and calls.

use super::client_store::ClientStore;
use super::ready::KeepsMemory;
use cotensor_memory::Unused;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The blocks.
impl KeepsMemory for ClientStore {
    fn unused(&self, now: Instant) -> Unused {
        self.daemon.slabs.unused(now)
    }

    fn give_up_oldest(&self) {
        self.daemon.slabs.give_up_oldest(&self.session());
    }
}

impl ClientStore {
    /// Adds a part whose unused memory counts with that of all others.
    pub fn add_kept_memory(&self, part: Weak<dyn KeepsMemory>) {
        self.daemon.ready.add(part);
    }

    /// Gives up memory of all parts beyond 64 MiB. Parts call it from time to time while they have memory.
    pub fn bound_kept_memory(&self, now: Instant) {
        self.daemon.ready.bound(now);
    }

    /// A part of this client keeps `now` bytes ready, and kept `before`. The daemon shows the total.
    pub fn change_ready(&self, before: u64, now: u64) {
        self.daemon.ready.change(before, now, || self.session());
    }

    /// Counts this client's own parts.
    pub(super) fn keep_own_memory(&self) {
        let pool = &self.daemon.memories.pool;
        self.add_kept_memory(self.me.clone());
        self.add_kept_memory(Arc::downgrade(pool) as Weak<dyn KeepsMemory>);
        let me = self.me.clone();
        pool.on_change(move |before, now| {
            if let Some(store) = me.upgrade() {
                store.change_ready(before as u64, now as u64);
            }
        });
    }
}
