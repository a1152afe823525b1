//! The reports of a store. Every figure is counted, none is estimated.

use std::collections::BTreeMap;

/// What freeing everything that nobody leases did. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OptimizeReport {
    /// Before.
    pub initial_memory_bytes: u64,
    /// After.
    pub current_memory_bytes: u64,
    /// The difference that freeing made.
    pub freed_memory_bytes: u64,
    /// How many tensors went.
    pub freed_tensors_count: usize,
    /// Their names.
    pub freed_tensors: Vec<String>,
    /// `freed_memory_bytes` in percent of `initial_memory_bytes`.
    pub memory_reduction_percent: f64,
    /// How many are left.
    pub remaining_tensor_count: usize,
}

/// The store's counters.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stats {
    /// Live tensors in memory, private ones left out.
    pub total_tensors: usize,
    /// Tensors that are spilled now.
    pub spilled_now: usize,
    /// Bytes of their segments.
    pub spilled_now_bytes: u64,
    /// Seconds since the store was made, and with it all that it counts began: hits, misses, copies, evictions, spills, the
    /// most bytes.
    pub counted_seconds: f64,
    /// Distinct holders with a lease.
    pub total_models: usize,
    /// Bytes taken from the budget of the host, private tensors and unpublished reservations included.
    pub memory_usage_bytes: u64,
    /// The most bytes that the budget of the host allows; `None` without a limit.
    #[cfg_attr(feature = "serde", serde(default))]
    pub max_memory_bytes: Option<u64>,
    /// Bytes that the budget counts for what is known about tensors: names, leases, and what a supervisor keeps of them.
    /// `memory_usage_bytes` and this together are at most `max_memory_bytes`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub metadata_bytes: u64,
    /// `memory_usage_bytes` in MiB.
    pub memory_usage_mb: f64,
    /// The most bytes of the host that were taken at a time.
    pub peak_memory_bytes: u64,
    /// The memory of each device, the host included.
    #[cfg_attr(feature = "serde", serde(default))]
    pub devices: Vec<DeviceStats>,
    /// Lookups and claims that found what they asked for.
    pub cache_hits: u64,
    /// Those that did not.
    pub cache_misses: u64,
    /// Hits over hits and misses, 0 to 1; 0 before the first.
    pub hit_rate: f64,
    /// The holders' names.
    pub models: Vec<String>,
    /// Kind to the holders of its tensors, where two or more hold two or more of them. Weights and `other` are left out.
    pub sharing_opportunities: BTreeMap<String, Vec<String>>,
    /// Tensors that the configuration kept private, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Copies by reason.
    pub copies: Vec<Copies>,
    /// Tensors evicted for lack of memory.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Tensors spilled for lack of memory.
    pub spills: u64,
    /// Bytes of their segments.
    pub spilled_bytes: u64,
    /// Tensors that came back from there.
    pub restores: u64,
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

/// Copies made for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Copies {
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// How much.
    pub bytes: u64,
}

/// What could be saved, and where.
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
    /// Bytes that [`optimize`](crate::MemoryControl::optimize) would free now (a pack goes as a whole or not at all), and bytes
    /// of tensors that stay and whose identity another that stays has, in MiB. Only identities that are known already
    /// are compared; nothing is hashed for this.
    pub potential_savings_mb: f64,
    /// The hit rate, 0 to 1.
    pub cache_efficiency: f64,
}

/// One copy of a tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RecentCopy {
    /// Whose bytes.
    pub tensor: String,
    /// Why.
    pub reason: String,
    /// How much.
    pub bytes: u64,
    /// Seconds since.
    pub age_seconds: f64,
}

/// Every live tensor, and every copy.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Diagnostics {
    /// By name and version.
    pub tensors: Vec<TensorInfo>,
    /// Copies by reason.
    pub copies: Vec<Copies>,
    /// The latest of them, oldest first.
    pub recent_copies: Vec<RecentCopy>,
    /// How often the cache could not keep something. Nothing is wrong then, but it has to be made again next time.
    pub cache_errors: u64,
    /// The latest of these.
    pub last_cache_error: Option<String>,
}

/// One live tensor.
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
    /// Where it lies.
    pub device: String,
    /// Which memory it lies in; `unpublished` or `private` where it is that.
    pub memory: String,
    /// What it means.
    pub kind: String,
    /// Which encoder made it.
    pub space: Option<String>,
    /// Who made it.
    pub producer: String,
    /// Holders and their leases.
    pub holders: BTreeMap<String, u32>,
    /// Seconds since it was published, or before that, since it was reserved.
    pub age_seconds: f64,
    /// How often it was found.
    pub hits: u64,
    /// Whether it stays when nobody leases it.
    pub cached: bool,
}
