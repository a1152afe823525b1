//! The record of one published tensor.

use crate::budget::TensorCharge;
use crate::leases::LeaseCount;
use crate::sync::{AtomicBool, AtomicU8};
use crate::{CopyReason, Holder, Key, Members, Retention, TensorId, TensorSpec};
use cotensor_core::{ContentHash, Device, Hasher, Kind, Layout, Segment, Space};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The part of a store backend that leases call. Called from any thread, and never under a lock of this crate.
pub trait LeaseBackend: Send + Sync {
    /// Called after the last lease of a record that is not [retained](RecordParts::retained) was dropped. Another lease
    /// may have been taken since: the backend removes the record only if [`Record::close`] returns true.
    fn release(&self, record: &Arc<Record>);

    /// Called after the last lease of a record that is kept for a [time](Record::keep_for) was dropped.
    fn left(&self, record: &Arc<Record>) {
        let _ = record;
    }

    /// Counts a copy of `bytes` bytes of `tensor` under `reason`.
    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize);
}

/// The parts of a [`Record`].
pub struct RecordParts {
    /// Unique to this version during the life of the store.
    pub id: TensorId,
    /// The description, with the dtype and shape of `layout`, and the device of `segment`.
    pub spec: TensorSpec,
    /// How the elements lie in the segment.
    pub layout: Layout,
    /// The memory.
    pub segment: Arc<dyn Segment>,
    /// Its bytes of the budget.
    pub charge: TensorCharge,
    /// Whether the tensor stays without leases. Otherwise its last lease calls [`LeaseBackend::release`].
    pub retained: bool,
    /// The producer of an unlisted tensor, which is freed with its last lease without a call to the backend.
    pub private: Option<Holder>,
    /// The computation whose result it is.
    pub key: Option<Key>,
    /// The time of publication, by the store's clock.
    pub created: Duration,
}

/// The relation of a version to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VersionState {
    /// The newest version of the name.
    Published,
    /// A newer version was published. Freed with its last lease.
    Superseded,
    /// The name was removed. Freed with its last lease.
    Removed,
    /// The newest version of the name, on spill storage.
    Spilled,
}

/// One published tensor, shared by its store and its leases. A store may have hundreds of thousands, so it is small.
pub struct Record {
    pub(crate) id: TensorId,
    name: Box<str>,
    producer: Box<str>,
    pub(crate) kind: Kind,
    pub(crate) retention: Retention,
    pub(crate) layout: Layout,
    pub(crate) segment: Arc<dyn Segment>,
    pub(crate) leases: LeaseCount,
    retained: AtomicBool,
    /// A [`VersionState`].
    state: AtomicU8,
    optional: Option<Box<Optional>>,
    pub(crate) charge: TensorCharge,
    pub(crate) created: Duration,
    last_used_ns: AtomicU64,
    identity: OnceLock<Box<ContentHash>>,
    pub(crate) backend: Weak<dyn LeaseBackend>,
}

/// The attributes that few tensors have.
struct Optional {
    space: Option<Space>,
    provenance: Option<ContentHash>,
    key: Option<Key>,
    /// The producer of an unlisted tensor. The [`Holder`] keeps its name in the table of holders.
    private: Option<Holder>,
    metadata: Option<Arc<str>>,
    keep_for: Option<Duration>,
    /// The members of a group.
    members: Option<Arc<Members>>,
}

impl Record {
    /// A record without leases. Its last lease calls `backend`, if that still exists.
    pub fn new(parts: RecordParts, backend: Weak<dyn LeaseBackend>) -> Arc<Self> {
        let RecordParts { id, spec, layout, segment, charge, retained, private, key, created } = parts;
        let TensorSpec { name, kind, space, producer, retention, keep_for, provenance, metadata, members, .. } = spec;
        let is_plain = space.is_none()
            && provenance.is_none()
            && key.is_none()
            && private.is_none()
            && metadata.is_none()
            && keep_for.is_none()
            && members.is_none();
        charge.segment().open();
        Arc::new(Self {
            id,
            name: name.into(),
            producer: producer.into(),
            kind,
            retention,
            layout,
            segment,
            leases: LeaseCount::default(),
            retained: AtomicBool::new(retained),
            state: AtomicU8::new(VersionState::Published as u8),
            optional: (!is_plain)
                .then(|| Box::new(Optional { space, provenance, key, private, metadata, keep_for, members })),
            charge,
            created,
            last_used_ns: AtomicU64::new(created.as_nanos() as u64),
            identity: OnceLock::new(),
            backend,
        })
    }

    /// The identity of the version.
    pub fn id(&self) -> TensorId {
        self.id
    }

    /// The description under which it was published.
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
            keep_for: self.keep_for(),
            provenance: self.provenance(),
            metadata: self.optional.as_ref().and_then(|optional| optional.metadata.clone()),
            members: self.members().cloned(),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The meaning of the tensor.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The name of the producer.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// The encoder that made it, if one did.
    pub fn space(&self) -> Option<Space> {
        self.optional.as_ref()?.space
    }

    /// The computation whose result it is.
    pub fn key(&self) -> Option<Key> {
        self.optional.as_ref()?.key
    }

    /// The publisher's metadata, a JSON object.
    pub fn metadata(&self) -> Option<&str> {
        self.optional.as_ref()?.metadata.as_deref()
    }

    /// The longest time that it stays without leases.
    pub fn keep_for(&self) -> Option<Duration> {
        self.optional.as_ref()?.keep_for
    }

    pub(crate) fn provenance(&self) -> Option<ContentHash> {
        self.optional.as_ref()?.provenance
    }

    /// The members of a group; `None` for a plain tensor.
    pub fn members(&self) -> Option<&Arc<Members>> {
        self.optional.as_ref()?.members.as_ref()
    }

    /// Whether it is unlisted.
    pub(crate) fn is_private(&self) -> bool {
        self.optional.as_ref().is_some_and(|optional| optional.private.is_some())
    }

    /// Refuses leases from now on if there is none; true for the one caller that closed it. That caller removes the
    /// record from its store: the budget counts its bytes as leaving.
    pub fn close(&self) -> bool {
        let closed = self.leases.close();
        if closed {
            self.charge.close();
        }
        closed
    }

    /// Whether it was closed: it is about to be freed or spilled.
    pub(crate) fn is_closed(&self) -> bool {
        self.leases.is_closed()
    }

    /// [Closes](Record::close) all of `records` at once, or none, so that no thread sees a part of them closed. Callers
    /// whose records overlap pass them in the same order; a record that is passed twice deadlocks.
    pub fn close_all(records: &[&Record]) -> bool {
        let closed = LeaseCount::close_all(&records.iter().map(|record| &record.leases).collect::<Vec<_>>());
        if closed {
            records.iter().for_each(|record| record.charge.close());
        }
        closed
    }

    /// How the elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory.
    pub fn segment(&self) -> &Arc<dyn Segment> {
        &self.segment
    }

    /// The device whose memory holds it.
    pub fn device(&self) -> Device {
        self.segment.device()
    }

    /// The time of publication, by the store's clock.
    pub fn created(&self) -> Duration {
        self.created
    }

    /// The number of lookups that found it.
    pub fn hits(&self) -> u64 {
        self.leases.hits()
    }

    /// Whether it stays without leases.
    pub fn is_retained(&self) -> bool {
        self.retained.load(Ordering::SeqCst)
    }

    /// The relation to its name. A spilled tensor has no record.
    pub fn state(&self) -> VersionState {
        const SUPERSEDED: u8 = VersionState::Superseded as u8;
        const REMOVED: u8 = VersionState::Removed as u8;
        match self.state.load(Ordering::SeqCst) {
            SUPERSEDED => VersionState::Superseded,
            REMOVED => VersionState::Removed,
            _ => VersionState::Published,
        }
    }

    pub(crate) fn set_state(&self, state: VersionState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Holders with their numbers of leases.
    pub fn holders(&self) -> Vec<(Holder, u32)> {
        self.leases.holders()
    }

    /// Sets the time of the last use.
    pub(crate) fn set_last_used(&self, now: Duration) {
        self.last_used_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> Duration {
        Duration::from_nanos(self.last_used_ns.load(Ordering::Relaxed))
    }

    /// Lets the last lease free the tensor, as for a superseded or removed version. If there is no lease now, no lease
    /// calls the backend: call [`LeaseBackend::release`] afterwards.
    pub fn stop_retaining(&self) {
        self.retained.store(false, Ordering::SeqCst);
    }

    pub(crate) fn recompute_time(&self) -> Duration {
        match self.retention {
            Retention::Cached { recompute } => recompute,
            Retention::WhileLeased => Duration::ZERO,
        }
    }

    /// The identity, if it is known without reading the content.
    pub(crate) fn known_identity(&self) -> Option<ContentHash> {
        self.provenance().or_else(|| self.identity.get().map(|identity| **identity))
    }

    /// The provenance, or without one the hash of dtype, shape and content, computed once.
    pub(crate) fn identity(&self) -> ContentHash {
        self.provenance().unwrap_or_else(|| **self.identity.get_or_init(|| Box::new(self.content_identity())))
    }

    fn content_identity(&self) -> ContentHash {
        let range = self.layout.byte_range();
        if let Some(bytes) = self.segment.bytes() {
            return self.identity_of(&bytes[range]);
        }
        let mut copy = vec![0; range.len()];
        match self.segment.read_at(range.start, &mut copy) {
            Ok(()) => {
                if let Some(backend) = self.backend.upgrade() {
                    backend.count_copy(&self.name, CopyReason::DeviceTransfer, copy.len());
                }
                self.identity_of(&copy)
            }
            // Memory that cannot be read has no content to compare: the id of the version stands for it.
            Err(_) => {
                let mut hasher = Hasher::new("cotensor version id v1");
                hasher.number(self.id.name_id).number(self.id.version).finish()
            }
        }
    }

    /// The identity of the tensor with the bytes of its layout. The bytes between the members of a group do not count.
    fn identity_of(&self, bytes: &[u8]) -> ContentHash {
        let Some(members) = self.members() else { return self.layout.identity(bytes) };
        let mut hasher = Hasher::new("cotensor group v1");
        for member in members.iter() {
            let content = bytes.get(member.layout().byte_range()).unwrap_or_default();
            hasher.field(member.name().as_bytes()).field(member.layout().identity(content).as_bytes());
        }
        hasher.finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn record_takes_at_most_256_bytes() {
        assert!(size_of::<Record>() <= 256, "{} bytes", size_of::<Record>());
    }
}
