//! One published tensor, as the store and its leases see it.

use crate::budget::Charge;
use crate::count::LeaseCount;
use crate::{Key, Lease, Reservation, Retention, TensorId, TensorSpec};
use cotensor_core::{ContentHash, Hasher, Layout, Result, Segment};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// What stands behind leases, reservations and tickets.
pub(crate) trait Home: Send + Sync {
    /// Makes a reservation's tensor visible and leases it to its holder.
    fn publish(&self, reservation: Reservation, key: Option<Key>) -> Result<Lease>;
    /// The last lease of a tensor that is not to be kept is gone.
    fn forget(&self, record: &Arc<Record>);
    /// A claim's results are there.
    fn finish(&self, key: Key, records: Vec<Weak<Record>>);
    /// A claim was given up; one of those who wait takes over.
    fn abandon(&self, key: Key);
    /// The name of a holder.
    fn holder_name(&self, id: u32) -> Arc<str>;
}

pub(crate) struct Record {
    pub(crate) id: TensorId,
    pub(crate) spec: TensorSpec,
    pub(crate) layout: Layout,
    pub(crate) segment: Arc<dyn Segment>,
    pub(crate) leases: LeaseCount,
    /// Whether it stays when nobody leases it.
    pub(crate) kept: AtomicBool,
    /// Not listed under its name.
    pub(crate) private: bool,
    /// The claim whose result it is part of.
    pub(crate) key: Option<Key>,
    /// Bytes of the budget; shared by all tensors of one segment.
    pub(crate) charge: Arc<Charge>,
    pub(crate) created: Duration,
    last_used_ns: AtomicU64,
    identity: OnceLock<ContentHash>,
    pub(crate) home: Weak<dyn Home>,
}

impl Record {
    #[allow(clippy::too_many_arguments, reason = "one place makes records")]
    pub(crate) fn new(
        id: TensorId,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        private: bool,
        key: Option<Key>,
        charge: Arc<Charge>,
        now: Duration,
        home: Weak<dyn Home>,
    ) -> Self {
        let kept = AtomicBool::new(matches!(spec.retention, Retention::Cached { .. }) && !private);
        let last_used_ns = AtomicU64::new(now.as_nanos() as u64);
        Self {
            id,
            spec,
            layout,
            segment,
            leases: LeaseCount::default(),
            kept,
            private,
            key,
            charge,
            created: now,
            last_used_ns,
            identity: OnceLock::new(),
            home,
        }
    }

    /// Notes a use at `now`.
    pub(crate) fn used(&self, now: Duration) {
        self.last_used_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> Duration {
        Duration::from_nanos(self.last_used_ns.load(Ordering::Relaxed))
    }

    /// From now on it goes with its last lease.
    pub(crate) fn let_go(&self) {
        self.kept.store(false, Ordering::SeqCst);
    }

    pub(crate) fn recompute(&self) -> Duration {
        match self.spec.retention {
            Retention::Cached { recompute } => recompute,
            Retention::WhileLeased => Duration::ZERO,
        }
    }

    /// The identity, if it is known without looking at the content.
    pub(crate) fn known_identity(&self) -> Option<ContentHash> {
        self.spec.provenance.or_else(|| self.identity.get().copied())
    }

    /// Provenance where there is one, else the hash of dtype, shape and content, computed once.
    pub(crate) fn identity(&self) -> ContentHash {
        self.spec.provenance.unwrap_or_else(|| {
            *self.identity.get_or_init(|| {
                let mut hasher = Hasher::new("cotensor content v1");
                hasher.field(self.layout.dtype().name().as_bytes()).number(self.layout.shape().len() as u64);
                for (&dim, &stride) in self.layout.shape().iter().zip(self.layout.strides()) {
                    hasher.number(dim as u64).number(stride as u64);
                }
                let range = self.layout.byte_range();
                match self.segment.bytes() {
                    Some(bytes) => hasher.field(&bytes[range]),
                    None => {
                        let mut copy = vec![0; range.len()];
                        // A device that cannot be read has no content to compare: its slot stands in.
                        match self.segment.read_at(range.start, &mut copy) {
                            Ok(()) => hasher.field(&copy),
                            Err(_) => hasher.number(self.id.slot).number(self.id.version),
                        }
                    }
                };
                hasher.finish()
            })
        })
    }
}
