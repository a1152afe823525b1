use crate::{Diagnostics, Lease, OptimizeReport, Recommendations, Reservation, SharingConfig, Stats, Ticket};
use cotensor_core::{ContentHash, DType, Error, Hasher, Kind, Result, Space};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where tensors are kept, found, leased and computed once.
///
/// Implementations are cheap to share between threads. All methods may be called at any time from any thread.
pub trait Store: Any + Send + Sync {
    /// The holder of that name; asking twice gives the same holder.
    fn holder(&self, name: &str) -> Holder;

    /// Leases the newest version of `name`.
    ///
    /// # Errors
    /// `NotFound` when no tensor of that name is published.
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease>;

    /// Leases exactly this version.
    ///
    /// # Errors
    /// `NotFound` when it was superseded and released, evicted or never existed.
    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease>;

    /// Whether exactly this version could be leased now, without leasing it.
    fn has(&self, id: TensorId) -> bool;

    /// Reserves memory for a tensor that `holder` will write and then publish.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room (names holders and bytes); `Refused` when the
    /// sharing configuration forbids this kind or size (counted); `Invalid` for an impossible shape or name.
    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Like [`reserve`](Store::reserve) for a program that keeps the address of the bytes and may write there after
    /// publishing, such as another language's arrays: nobody else sees that then. The address stays as long as the
    /// tensor's memory.
    ///
    /// # Errors
    /// As [`reserve`](Store::reserve); `Unsupported` where the store's memory cannot protect itself from that.
    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Like [`reserve`](Store::reserve) for a tensor that stays private: unnamed, unlisted, freed with its last
    /// lease. The budget applies, the sharing configuration does not.
    ///
    /// # Errors
    /// As [`reserve`](Store::reserve), without `Refused`.
    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Claims the computation `key`: either its results are there, or the caller has to compute them while
    /// others wait, or another is computing and this call waits for it, as long as the store allows.
    ///
    /// # Errors
    /// `TimedOut` past the store's longest wait.
    fn claim(&self, key: &Key, holder: &Holder) -> Result<Claim> {
        self.claim_within(key, holder, Duration::MAX)
    }

    /// Like [`claim`](Store::claim), but waits at most `wait`. A zero `wait` never waits.
    ///
    /// # Errors
    /// `TimedOut` past `wait` or the store's longest wait; the error names the holder that computes.
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim>;

    /// Whether the results of `key` are there, without leasing or waiting.
    fn is_computed(&self, key: &Key) -> bool;

    /// Leases contents by hash. What is missing is filled by `source` into one new segment, each
    /// content once however many ask at the same time.
    ///
    /// # Errors
    /// What `source` returns, or as [`reserve`](Store::reserve). Nothing that `source` was to fill is kept then;
    /// contents that were found elsewhere (in the cache) stay, unleased.
    fn contents(&self, specs: &[ContentSpec], source: &mut dyn ContentSource, holder: &Holder) -> Result<Vec<Lease>>;

    /// A small note kept under `key`, beyond this process where the store can.
    fn recall(&self, key: &ContentHash) -> Option<Vec<u8>>;

    /// Keeps a small note; losing one costs time, never correctness.
    fn remember(&self, key: &ContentHash, note: &[u8]);

    /// Forgets `name`: no new lease can be taken, memory returns with the last lease.
    ///
    /// # Errors
    /// `NotFound` when there is no such name.
    fn remove(&self, name: &str) -> Result<()>;

    /// What may be shared.
    fn config(&self) -> &SharingConfig;

    /// Changes the most bytes that the store may hold, and evicts what nobody leases until it holds no more if that will
    /// do. What is leased stays.
    ///
    /// # Errors
    /// `Unsupported` for a store whose budget is not this process's to set.
    fn limit_memory(&self, max_bytes: u64) -> Result<()>;

    /// Makes memory for `count` tensors of `bytes` bytes ready, so that putting them takes the time of the copy; returns for
    /// how many there was room. To be called when there is nothing better to do: it takes longer than it spares.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    fn prefault(&self, bytes: usize, count: usize) -> Result<usize> {
        let _ = (bytes, count);
        Ok(0)
    }

    /// Counts a copy of `bytes` bytes of `tensor` (its name, or what else tells people which) and why it was made.
    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize);

    /// Frees every tensor that nobody leases.
    fn optimize(&self) -> OptimizeReport;

    /// The store's counters.
    fn stats(&self) -> Stats;

    /// What could be saved, and where.
    fn recommendations(&self) -> Recommendations;

    /// Every live tensor with holders, bytes, device, age and hits; and every copy with its reason.
    fn diagnostics(&self) -> Diagnostics;
}

/// Who holds a lease: a model, a user, a session. Compared by identity within one store.
#[derive(Clone)]
pub struct Holder {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
}

impl Holder {
    /// A holder as the store itself numbers and names it. Only [`Store::holder`] has use for this.
    pub fn new(id: u32, name: Arc<str>) -> Self {
        Self { id, name }
    }

    /// Its number within the store.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The name given to [`Store::holder`].
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.name)
    }
}

/// One version of one tensor in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// Identity of the name within the store.
    pub slot: u64,
    /// Counts up from 1 with every publication of the name.
    pub version: u64,
}

/// What identifies a computation: stage fingerprint, engine and its version, precision, and inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub ContentHash);

/// How long a tensor stays when nobody leases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Freed with its last lease.
    WhileLeased,
    /// Kept until memory is wanted; what is cheapest to make again per byte goes first.
    Cached {
        /// What it would take to make it again.
        recompute: Duration,
    },
}

/// What is to be reserved. Shape in elements.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// The name to publish under.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// What the tensor means.
    pub kind: Kind,
    /// Which encoder made it, when one did.
    pub space: Option<Space>,
    /// Who made it, for people.
    pub producer: String,
    /// What happens to it when nobody leases it.
    pub retention: Retention,
    /// Identity of the value by how it was made (stage key and output), when it was; equal provenance is equal
    /// content, dtype and shape, so it stands in for their hash, which then never has to be computed.
    pub provenance: Option<ContentHash>,
}

/// The longest name of a tensor, a holder or a producer, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

impl TensorSpec {
    /// A tensor of any kind, made by nobody in particular, that goes with its last lease. Shape in elements.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            kind: Kind::Other,
            space: None,
            producer: String::new(),
            retention: Retention::WhileLeased,
            provenance: None,
        }
    }

    /// Bytes of its name and its producer.
    pub(crate) fn text_bytes(&self) -> usize {
        self.name.len() + self.producer.len()
    }

    /// Whether a tensor can be called that, by a producer called that.
    ///
    /// # Errors
    /// `Invalid` naming the field, for what is empty or longer than [`NAME_BYTES_MAX`].
    pub fn check_names(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(Error::invalid("a name is required").in_field("name"));
        }
        check_name(&self.name, "name").and_then(|()| check_name(&self.producer, "producer"))
    }
}

/// Whether a name is no longer than [`NAME_BYTES_MAX`].
///
/// # Errors
/// `Invalid` naming `field` when it is.
pub fn check_name(name: &str, field: &str) -> Result<()> {
    match name.len() > NAME_BYTES_MAX {
        true => Err(Error::invalid(format!("longer than {NAME_BYTES_MAX} bytes")).in_field(field)),
        false => Ok(()),
    }
}

/// A content to lease: its hash, and how to look at its bytes. Row-major.
#[derive(Clone, Debug)]
pub struct ContentSpec {
    /// BLAKE3 of the bytes.
    pub hash: ContentHash,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// Who wants it, for people.
    pub producer: String,
}

impl ContentSpec {
    /// What the value is: these bytes as this dtype in this shape. The bytes alone are not a value: six zeros of
    /// `float32` are no three zeros of `int64`.
    pub fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor content value v1");
        hasher.field(self.hash.as_bytes()).field(self.dtype.name().as_bytes()).number(self.shape.len() as u64);
        for &dim in &self.shape {
            hasher.number(dim as u64);
        }
        hasher.finish()
    }
}

/// Provides the bytes of contents that the store does not have yet.
pub trait ContentSource {
    /// Fills `target` (exactly the content's bytes) with content number `index` of the request.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being had; the store then keeps nothing of what it asked this source for, the
    /// contents filled before included.
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()>;
}

/// The answer to [`Store::claim`].
pub enum Claim {
    /// Computed already: its results, leased to the caller.
    Ready(Vec<Lease>),
    /// The caller computes. Others wait until the ticket is used or dropped.
    Compute(Ticket),
}

/// Why bytes were copied. Every copy anywhere in Cotensor is counted under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CopyReason {
    /// A user's file is copied in, never mapped, so that truncating it harms nobody.
    FileImport,
    /// The engine returns outputs in memory of its own.
    EngineOutput,
    /// An input was preprocessed in memory of the library that does it.
    Preprocessed,
    /// The engine wants another element type (64-bit to 32-bit integers).
    EngineConversion,
    /// A caller put its own bytes into the store.
    Put,
    /// From one device to another.
    DeviceTransfer,
    /// To a reader, or from a writer, who has no memory in common with the store.
    Network,
    /// A reader wrote in place: the pages that he wrote became his own.
    CopyOnWrite,
    /// A reader may write in place, and this memory cannot be mapped for that.
    PrivateCopy,
}

impl CopyReason {
    /// Every reason.
    pub const ALL: &'static [CopyReason] = &[
        CopyReason::FileImport,
        CopyReason::EngineOutput,
        CopyReason::Preprocessed,
        CopyReason::EngineConversion,
        CopyReason::Put,
        CopyReason::DeviceTransfer,
        CopyReason::Network,
        CopyReason::CopyOnWrite,
        CopyReason::PrivateCopy,
    ];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CopyReason::FileImport => "file import",
            CopyReason::EngineOutput => "engine output",
            CopyReason::Preprocessed => "preprocessed input",
            CopyReason::EngineConversion => "engine conversion",
            CopyReason::Put => "put",
            CopyReason::DeviceTransfer => "device transfer",
            CopyReason::Network => "network",
            CopyReason::CopyOnWrite => "copy on write",
            CopyReason::PrivateCopy => "private copy",
        }
    }
}
