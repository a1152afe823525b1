//! A daemon's settings.

use cotensor_store::SharingConfig;
use std::path::PathBuf;
use std::time::Duration;

/// What the budget counts for a tensor beside its memory: names, records, entries and one lease, which the server and its
/// supervisor keep in their heaps. More for its texts ([`TEXT_COPIES`](cotensor_store::backend::TEXT_COPIES)) and dimensions
/// ([`DIMENSION_BYTES`](cotensor_store::backend::DIMENSION_BYTES)).
pub const METADATA_BYTES: u64 = 864;
/// The interval at which a daemon checks that the files of its socket and its lock are in place.
pub(crate) const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time from a session's end to the trimming of the heap. Sessions that end together are one occasion.
pub(crate) const HEAP_TRIM_DELAY: Duration = Duration::from_secs(1);

/// How a daemon runs. Every field has a default; the command line and `COTENSOR_*` variables set them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens; see [`default_socket`].
    pub socket: PathBuf,
    /// The most bytes of all segments together, and [`METADATA_BYTES`](METADATA_BYTES) for each tensor.
    pub max_memory_bytes: u64,
    /// What clients may share. What they may not, they keep to themselves.
    pub sharing: SharingConfig,
    /// The most bytes that one client's leases and reservations may come to.
    pub max_client_bytes: u64,
    /// Where tensors go that nobody leases when memory is wanted; without it they are dropped.
    pub spill: Option<PathBuf>,
    /// The most bytes there.
    pub max_spill_bytes: u64,
    /// Tensors of at most this many bytes go into their producers' slabs, which the producers can write. 0 refuses slabs: every
    /// tensor has sealed memory of its own.
    pub small_bytes_max: u64,
    /// The most connections at a time.
    pub connections_max: usize,
    /// The longest that a claim waits for another session's computation.
    pub claim_wait_max: Duration,
    /// How long a connection may take to say hello, and a frame that has begun to end.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            max_memory_bytes: u64::MAX,
            sharing: SharingConfig::default(),
            max_client_bytes: u64::MAX,
            spill: None,
            max_spill_bytes: u64::MAX,
            small_bytes_max: 256 << 10,
            connections_max: 1024,
            claim_wait_max: Duration::from_secs(600),
            patience: Duration::from_secs(10),
        }
    }
}

pub use cotensor_client::default_socket;
