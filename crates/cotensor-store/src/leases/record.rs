//! One published tensor, as the store and its leases see it.

use crate::backend::{RecordParts, StoreBackend};
use crate::budget::TensorCharge;
use crate::leases::LeaseCount;
use crate::{CopyReason, Holder, Key, Lease, Retention, TensorId, TensorSpec};
use cotensor_core::{ContentHash, Device, Hasher, Kind, Layout, Segment, Space};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// What a version is to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VersionState {
    /// The name means it.
    Published,
    /// A newer version was published; it goes with its last lease.
    Superseded,
    /// The name was removed; it goes with its last lease.
    Removed,
    /// The name means it, and its memory is elsewhere.
    Spilled,
}

/// One published tensor, as its store and its leases see it. There may be hundreds of thousands, so it is kept small.
pub struct Record {
    pub(crate) id: TensorId,
    name: Box<str>,
    producer: Box<str>,
    pub(crate) kind: Kind,
    pub(crate) retention: Retention,
    pub(crate) layout: Layout,
    pub(crate) segment: Arc<dyn Segment>,
    pub(crate) leases: LeaseCount,
    /// Whether it stays when nobody leases it.
    pub(crate) kept: AtomicBool,
    /// A [`VersionState`].
    state: AtomicU8,
    rare: Option<Box<Rare>>,
    /// Bytes of the budget.
    pub(crate) charge: TensorCharge,
    pub(crate) created: Duration,
    last_used_ns: AtomicU64,
    identity: OnceLock<Box<ContentHash>>,
    pub(crate) home: Weak<dyn StoreBackend>,
}

/// What few tensors have.
struct Rare {
    space: Option<Space>,
    provenance: Option<ContentHash>,
    /// The claim whose result it is part of.
    key: Option<Key>,
    /// Who made it, where it is not listed under its name; kept so that his name is.
    private: Option<Holder>,
}

impl Record {
    /// A record that nobody leases yet. `home` is asked when its last lease goes, as long as it lives.
    pub fn new(parts: RecordParts, home: Weak<dyn StoreBackend>) -> Arc<Self> {
        let RecordParts { id, spec, layout, segment, charge, kept, private, key, created } = parts;
        let TensorSpec { name, dtype: _, shape: _, device: _, kind, space, producer, retention, provenance } = spec;
        let is_plain = space.is_none() && provenance.is_none() && key.is_none() && private.is_none();
        charge.segment().opened();
        Arc::new(Self {
            id,
            name: name.into(),
            producer: producer.into(),
            kind,
            retention,
            layout,
            segment,
            leases: LeaseCount::default(),
            kept: AtomicBool::new(kept),
            state: AtomicU8::new(VersionState::Published as u8),
            rare: (!is_plain).then(|| Box::new(Rare { space, provenance, key, private })),
            charge,
            created,
            last_used_ns: AtomicU64::new(created.as_nanos() as u64),
            identity: OnceLock::new(),
            home,
        })
    }

    /// Which version of which tensor.
    pub fn id(&self) -> TensorId {
        self.id
    }

    /// What was published.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec {
            name: self.name.to_string(),
            dtype: self.layout.dtype(),
            shape: self.layout.shape().to_vec(),
            device: self.segment.device(),
            kind: self.kind,
            space: self.space(),
            producer: self.producer.to_string(),
            retention: self.retention,
            provenance: self.provenance(),
        }
    }

    /// The name that it was published under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Who made it.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// Which encoder made it, when one did.
    pub fn space(&self) -> Option<Space> {
        self.rare.as_ref()?.space
    }

    /// The claim whose result it is part of.
    pub fn key(&self) -> Option<Key> {
        self.rare.as_ref()?.key
    }

    fn provenance(&self) -> Option<ContentHash> {
        self.rare.as_ref()?.provenance
    }

    /// Whether it is not listed under its name.
    pub(crate) fn is_private(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.private.is_some())
    }

    /// A lease for `holder`; `None` once it is closed.
    pub fn lease(self: &Arc<Self>, holder: &Holder) -> Option<Lease> {
        Lease::take(self, holder.id)
    }

    /// Like [`lease`](Record::lease) for a lookup, which counts as a hit.
    pub fn find(self: &Arc<Self>, holder: &Holder) -> Option<Lease> {
        Lease::find(self, holder.id)
    }

    /// Ends leasing if nobody has a lease; true exactly for the caller that ended it. Whoever closes a record takes it
    /// out of its store: its bytes count as about to come back from then on.
    pub fn close(&self) -> bool {
        let closed = self.leases.close();
        if closed {
            self.charge.closed();
        }
        closed
    }

    /// How the elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The allocation.
    pub fn segment(&self) -> &Arc<dyn Segment> {
        &self.segment
    }

    /// The device whose memory holds it.
    pub fn device(&self) -> Device {
        self.segment.device()
    }

    /// When it was published, by the store's clock.
    pub fn created(&self) -> Duration {
        self.created
    }

    /// Lookups that found it.
    pub fn hits(&self) -> u64 {
        self.leases.hits()
    }

    /// Whether it stays when nobody leases it.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }

    /// What it is to its name.
    pub fn state(&self) -> VersionState {
        const SUPERSEDED: u8 = VersionState::Superseded as u8;
        const REMOVED: u8 = VersionState::Removed as u8;
        match self.state.load(Ordering::SeqCst) {
            SUPERSEDED => VersionState::Superseded,
            REMOVED => VersionState::Removed,
            // The record of a spilled tensor is gone.
            _ => VersionState::Published,
        }
    }

    pub(crate) fn set_state(&self, state: VersionState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Holder ids with their leases.
    pub fn holders(&self) -> Vec<(u32, u32)> {
        self.leases.holders()
    }

    /// Notes a use at `now`.
    pub(crate) fn used(&self, now: Duration) {
        self.last_used_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> Duration {
        Duration::from_nanos(self.last_used_ns.load(Ordering::Relaxed))
    }

    /// From now on it goes with its last lease: for one that was superseded or removed. If nobody leases it already,
    /// nobody will ask: call [`StoreBackend::release`] afterwards.
    pub fn let_go(&self) {
        self.kept.store(false, Ordering::SeqCst);
    }

    pub(crate) fn recompute(&self) -> Duration {
        match self.retention {
            Retention::Cached { recompute } => recompute,
            Retention::WhileLeased => Duration::ZERO,
        }
    }

    /// The identity, if it is known without looking at the content.
    pub(crate) fn known_identity(&self) -> Option<ContentHash> {
        self.provenance().or_else(|| self.identity.get().map(|identity| **identity))
    }

    /// Provenance where there is one, else the hash of dtype, shape and content, computed once.
    pub(crate) fn identity(&self) -> ContentHash {
        self.provenance().unwrap_or_else(|| **self.identity.get_or_init(|| Box::new(self.content_identity())))
    }

    fn content_identity(&self) -> ContentHash {
        let range = self.layout.byte_range();
        if let Some(bytes) = self.segment.bytes() {
            return self.layout.identity(&bytes[range]);
        }
        let mut copy = vec![0; range.len()];
        match self.segment.read_at(range.start, &mut copy) {
            Ok(()) => {
                if let Some(home) = self.home.upgrade() {
                    home.count_copy(&self.name, CopyReason::DeviceTransfer, copy.len());
                }
                self.layout.identity(&copy)
            }
            // A device that cannot be read has no content to compare: its slot stands in.
            Err(_) => {
                let mut hasher = Hasher::new("cotensor slot v1");
                hasher.number(self.id.slot).number(self.id.version).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Record>() <= 256, "{} bytes", size_of::<Record>());
    }
}
