//! The configuration of a daemon.

use crate::models::ModelsConfig;
use cotensor_core::Device;
use cotensor_memory::process::limit_bytes;
use cotensor_store::SharingConfig;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes that the budget counts for a tensor besides its memory: names, records, journal entries and one lease in the
/// heaps of the server and its supervisor. Texts ([`TEXT_COPIES`](cotensor_store::backend::TEXT_COPIES)) and dimensions
/// ([`DIMENSION_BYTES`](cotensor_store::backend::DIMENSION_BYTES)).
pub const METADATA_BYTES: u64 = 864;

/// The configuration of a daemon. Each field has a default. The command line and `COTENSOR_*` variables set them.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path of its socket; see [`default_socket`].
    pub socket: PathBuf,
    /// The most bytes of all segments in host memory together, and [`METADATA_BYTES`] for each tensor.
    pub max_memory_bytes: u64,
    /// The devices other than the host whose memory clients may share, each with the most bytes of all segments there.
    pub max_device_bytes: BTreeMap<Device, u64>,
    /// The tensors that clients may share. They keep others private.
    pub sharing: SharingConfig,
    /// The most bytes of one client's leases and reservations, on all devices together.
    pub max_client_bytes: u64,
    /// The folder to which tensors without leases are spilled when memory is needed. Without it they are evicted.
    pub spill: Option<PathBuf>,
    /// The most bytes in that folder.
    pub max_spill_bytes: u64,
    /// Tensors of at most this many bytes go into their producers' slabs, which the producers can write. 0 refuses
    /// slabs: every tensor has sealed memory of its own.
    pub small_bytes_max: u64,
    /// The most connections at a time.
    pub connections_max: usize,
    /// The longest time that a claim waits for another session's computation.
    pub claim_wait_max: Duration,
    /// The program that runs models for clients of HTTP and of the method `models.start`; none to serve no models.
    pub models: Option<ModelsConfig>,
    /// The daemon ends after this time without clients and tensors; it goes on without.
    pub idle_exit: Option<Duration>,
    /// The time for `session.hello` after a connection, and for a frame after its first byte.
    pub message_timeout: Duration,
}

/// A share of the memory that this process can have at most, in bytes: of the machine's, or of the smallest limit of a
/// control group. `None` where neither is known.
pub fn share_of_memory(percent: u64) -> Option<u64> {
    Some(limit_bytes()? / 100 * percent)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            max_memory_bytes: u64::MAX,
            max_device_bytes: BTreeMap::new(),
            sharing: SharingConfig::default(),
            max_client_bytes: u64::MAX,
            spill: None,
            max_spill_bytes: u64::MAX,
            small_bytes_max: 256 << 10,
            connections_max: 1024,
            claim_wait_max: Duration::from_secs(600),
            models: None,
            idle_exit: None,
            message_timeout: Duration::from_secs(10),
        }
    }
}

pub use cotensor_client::default_socket;
