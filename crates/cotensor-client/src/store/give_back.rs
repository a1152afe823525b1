//! The thread that gives idle blocks back.

use super::client_store::ClientStore;
use crate::protocol as p;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often it looks for idle blocks. With the time after which a block is idle, memory is given back within ten seconds.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long it waits for the daemon. It holds the store meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the thread, unless it runs. It ends with the last block.
pub(super) fn start(store: &ClientStore) {
    let gives_back = &store.daemon.slabs.gives_back;
    if gives_back.swap(true, Ordering::Relaxed) {
        return;
    }
    let store = store.me.clone();
    let give_back = move || {
        loop {
            std::thread::sleep(INTERVAL);
            let Some(store) = store.upgrade() else { return };
            let session = store.session();
            // The notifications of freed blocks come before the answer. An idle client does not read them.
            // A late answer ends no connection, which would end the leases.
            let _ = session.connection.call_or_forget::<p::Ping>(&p::Empty {}, ANSWER_TIMEOUT);
            if !store.daemon.slabs.give_back(&session) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("give back".to_owned()).stack_size(256 << 10);
    if thread.spawn(give_back).is_err() {
        // The next block tries again.
        gives_back.store(false, Ordering::Relaxed);
    }
}
