//! The thread of a caller that gives blocks back. A provider's timer does that for all its callers.

use super::ConnectionArena;
use crate::threads::spawn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Starts the thread at a caller's end, unless it runs. It ends with the last block of both ends, and with the connection.
pub(super) fn start(arena: &Arc<ConnectionArena>) {
    if !arena.is_caller || arena.gives_back.swap(true, Ordering::Relaxed) {
        return;
    }
    let (weak, interval) = (Arc::downgrade(arena), arena.interval());
    let give_back = move || {
        loop {
            std::thread::sleep(interval);
            let Some(arena) = weak.upgrade() else { return };
            // What the other end released and closed since the last call.
            if !arena.sender().is_some_and(|sender| sender.read_arrived().is_ok()) {
                return arena.end();
            }
            if !arena.give_back(Instant::now()) {
                return;
            }
        }
    };
    if spawn("cotensor-blocks", give_back).is_err() {
        // The next block tries again.
        arena.gives_back.store(false, Ordering::Relaxed);
    }
}
