//! Leases that a server keeps for sessions of the former one.

use cotensor_client::ClientStore;
use cotensor_client::protocol::{List, ListOrder, ListParams};
use cotensor_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The daemon's name for the holder of such leases.
const HOLDER: &str = "taken over";
/// The interval between two lists of all tensors.
const INTERVAL: Duration = Duration::from_millis(200);

/// Measures how long such leases exist, until [`end`](Self::end).
pub(super) struct TakenOver {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl TakenOver {
    /// # Errors
    /// `Io` when the system starts no more threads; those of a connection.
    pub(super) fn watch(socket: &Path) -> Result<Self> {
        let store = ClientStore::connect(Some(socket), "inspector of leases")?;
        let stop = Arc::<AtomicBool>::default();
        let stopping = Arc::clone(&stop);
        let watching = move || {
            let (mut longest, mut since) = (Duration::ZERO, None);
            while !stopping.load(Ordering::SeqCst) {
                let found = exist(&store).then(|| (store.epoch(), Instant::now()));
                // The next server begins to wait anew.
                since = found.map(|now| since.filter(|(server, _)| *server == now.0).unwrap_or(now));
                longest = longest.max(since.map_or(Duration::ZERO, |(_, first)| first.elapsed()));
                std::thread::sleep(INTERVAL);
            }
            longest
        };
        let thread = std::thread::Builder::new().name("taken over".to_owned()).spawn(watching);
        Ok(Self { stop, thread: thread.map_err(|error| Error::io("starting a thread", &error))? })
    }

    /// The longest time from the first to the last look that found such leases at one server.
    ///
    /// # Errors
    /// `Corrupt` when the thread has panicked.
    pub(super) fn end(self) -> Result<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| Error::corrupt("the inspector of leases has panicked"))
    }
}

/// Whether such leases exist, among the first tensors of the list. False without an answer: that server is dead.
fn exist(store: &ClientStore) -> bool {
    let all = ListParams { prefix: String::new(), limit: usize::MAX, order: ListOrder::Name };
    let list = store.request::<List>(&all);
    list.is_ok_and(|list| list.tensors.iter().any(|tensor| tensor.holders.contains_key(HOLDER)))
}
