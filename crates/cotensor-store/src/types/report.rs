//! The reports of a store. Every figure is counted, none is estimated.

use std::collections::BTreeMap;

/// The outcome of freeing all unleased tensors. Sizes in bytes, on all devices.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OptimizeReport {
    /// Bytes in use before.
    pub initial_memory_bytes: u64,
    /// Bytes in use after.
    pub current_memory_bytes: u64,
    /// Bytes of the freed tensors.
    pub freed_memory_bytes: u64,
    /// The number of freed tensors.
    pub freed_tensors_count: usize,
    /// Their names.
    pub freed_tensors: Vec<String>,
    /// `freed_memory_bytes` in percent of `initial_memory_bytes`.
    pub memory_reduction_percent: f64,
    /// The number of tensors that stay.
    pub remaining_tensor_count: usize,
}

/// The store's counters.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stats {
    /// Tensors in memory, without private ones.
    pub total_tensors: usize,
    /// Tensors on spill storage.
    pub spilled_now: usize,
    /// Bytes of their segments.
    pub spilled_now_bytes: u64,
    /// Seconds since the store was created, when all counters started: hits, misses, copies, evictions, spills, peaks.
    pub counted_seconds: f64,
    /// The number of holders with a lease.
    pub total_models: usize,
    /// Bytes taken from the budget of the host, private tensors and unpublished reservations included.
    pub memory_usage_bytes: u64,
    /// The most bytes that the budget of the host allows; `None` without a limit.
    #[cfg_attr(feature = "serde", serde(default))]
    pub max_memory_bytes: Option<u64>,
    /// Bytes that the budget counts for the metadata of tensors: names, leases, and their copies in a supervisor.
    /// `memory_usage_bytes` and this together are at most `max_memory_bytes`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub metadata_bytes: u64,
    /// Bytes of memory that producers keep for their next tensors, and both ends of connections for calls. No budget counts it, and it is
    /// given back within ten seconds, but for memory that the program has prefaulted, and slabs of connections whose other end does not close them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub ready_bytes: u64,
    /// The bytes that the published tensors in memory would take if each holder had a copy of its own.
    #[cfg_attr(feature = "serde", serde(default))]
    pub unshared_bytes: u64,
    /// `unshared_bytes` less the bytes of these tensors: what sharing saves now.
    #[cfg_attr(feature = "serde", serde(default))]
    pub saved_bytes: u64,
    /// Tensors in memory without a lease, which stay until they are removed or evicted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kept_tensors: usize,
    /// Bytes of their elements.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kept_bytes: u64,
    /// The producers of these tensors: the ten with the most bytes, largest first.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kept_by: Vec<KeptTensors>,
    /// `memory_usage_bytes` in MiB.
    pub memory_usage_mb: f64,
    /// The most bytes of the host that were taken at a time.
    pub peak_memory_bytes: u64,
    /// The memory of each device, the host included.
    #[cfg_attr(feature = "serde", serde(default))]
    pub devices: Vec<DeviceStats>,
    /// Lookups and claims that found a tensor.
    pub cache_hits: u64,
    /// Lookups and claims that did not.
    pub cache_misses: u64,
    /// Hits divided by hits and misses, 0 to 1; 0 before the first lookup.
    pub hit_rate: f64,
    /// The holders' names.
    pub models: Vec<String>,
    /// The holders by kind, where two or more hold two or more tensors of that kind. Weights and `other` are left out.
    pub sharing_opportunities: BTreeMap<String, Vec<String>>,
    /// Tensors that the configuration kept private, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Copies by reason.
    pub copies: Vec<Copies>,
    /// Tensors that were evicted to make room.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Tensors that were spilled to make room.
    pub spills: u64,
    /// Bytes of their segments.
    pub spilled_bytes: u64,
    /// Tensors that were restored.
    pub restores: u64,
}

/// The tensors of one producer that have no lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KeptTensors {
    /// The producer, which may have ended.
    pub producer: String,
    /// Their number.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
}

/// The memory of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceStats {
    /// The device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Live tensors on it, without private ones.
    pub tensors: usize,
    /// Bytes taken from its budget, private tensors and unpublished reservations included.
    pub memory_usage_bytes: u64,
    /// The most bytes that its budget allows; `None` without a limit.
    pub max_memory_bytes: Option<u64>,
    /// The most bytes that were taken at a time.
    pub peak_memory_bytes: u64,
}

/// The copies with one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Copies {
    /// The reason.
    pub reason: String,
    /// The number of copies.
    pub count: u64,
    /// The bytes that were copied.
    pub bytes: u64,
}

/// Memory that could be saved.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Recommendations {
    /// Names and bytes, largest first.
    pub largest_tensors: Vec<(String, u64)>,
    /// Names and leases of tensors with one lease or none.
    pub low_reference_tensors: Vec<(String, u64)>,
    /// As in [`Stats`].
    pub sharing_opportunities: BTreeMap<String, Vec<String>>,
    /// Bytes in use, in MiB.
    pub total_memory_mb: f64,
    /// MiB that [`optimize`](crate::MemoryControl::optimize) would free now, plus those of tensors that stay and have
    /// the identity of another one that stays. Only identities that are known already are compared.
    pub potential_savings_mb: f64,
    /// The hit rate, 0 to 1.
    pub cache_efficiency: f64,
}

/// One copy of a tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RecentCopy {
    /// The name of the tensor.
    pub tensor: String,
    /// The reason.
    pub reason: String,
    /// The bytes that were copied.
    pub bytes: u64,
    /// Seconds since the copy.
    pub age_seconds: f64,
}

/// Every tensor, and every copy.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Diagnostics {
    /// By name and version.
    pub tensors: Vec<TensorInfo>,
    /// Copies by reason.
    pub copies: Vec<Copies>,
    /// The latest copies, oldest first.
    pub recent_copies: Vec<RecentCopy>,
    /// Errors of the cache. The store works without it, but loads or computes more.
    pub cache_errors: u64,
    /// The latest error of the cache.
    pub last_cache_error: Option<String>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its version; 0 before it is published, and for a private one.
    pub version: u64,
    /// Element type.
    pub dtype: String,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// Bytes of its elements.
    pub bytes: u64,
    /// Its device.
    pub device: String,
    /// The kind of its memory; `unpublished` or `private` for such tensors.
    pub memory: String,
    /// The meaning of the tensor.
    pub kind: String,
    /// The encoder that made it.
    pub space: Option<String>,
    /// The producer.
    pub producer: String,
    /// Holders with their numbers of leases.
    pub holders: BTreeMap<String, u32>,
    /// Seconds since it was published, or before that, since it was reserved.
    pub age_seconds: f64,
    /// Lookups that found it.
    pub hits: u64,
    /// Whether it stays without leases.
    pub cached: bool,
    /// The number of members of a group; 0 for a plain tensor.
    #[cfg_attr(feature = "serde", serde(default))]
    pub member_count: usize,
}
