//! The resources of a session.

use super::handles::HandleTable;
use super::segments::SegmentTable;
use crate::state::broker::Share;
use crate::state::segment::Slab;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::backend::{Charge, TensorCharge};
use cotensor_store::{BlobPack, Holder, Lease, SegmentCharge, TensorId, TensorSpec, Ticket};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The resources of a session. Dropping them releases the leases and the shares, and returns the charges.
#[derive(Default)]
pub(crate) struct Resources {
    /// Holders by the names that the client gave them.
    pub(super) holders: HashMap<String, Holder>,
    /// Leases by tensor and holder.
    pub(super) leases: HashMap<(TensorId, Holder), LeaseEntry>,
    pub(super) segments: SegmentTable,
    pub(crate) reservations: HandleTable<Reserved>,
    pub(crate) packs: HandleTable<(BlobPack, Arc<Charge>)>,
    pub(crate) tickets: HandleTable<Ticket>,
    /// Slabs by the numbers of their segments.
    pub(crate) slabs: HashMap<u64, SlabEntry>,
    /// Shares of the memory of devices.
    pub(crate) shares: Vec<Share>,
    /// Bytes that the client keeps ready for calls, as it reports them.
    pub(crate) ready_for_calls: u64,
    /// Whether the session has ended. A call that still ran then may have added resources since: its answer reached no client.
    pub(super) ended: bool,
}

/// A lease, and how often the client took it.
pub(super) struct LeaseEntry {
    pub(super) lease: Lease,
    pub(super) count: u32,
    /// Its part of the session's budget. `None` for a tensor in a slab of this session, which is charged already.
    pub(super) _charge: Option<Arc<Charge>>,
}

/// A tensor whose memory the client makes. It is charged already.
pub(crate) struct Reserved {
    pub(crate) spec: TensorSpec,
    pub(crate) charge: TensorCharge,
    /// Its part of the session's budget. The charge of the lease replaces it.
    pub(crate) own: Arc<Charge>,
    pub(crate) holder: Holder,
}

/// Memory that the session's client writes.
pub(crate) enum SlabEntry {
    /// A slab of many tensors.
    Shared {
        slab: Arc<Slab>,
        /// The store charges the memory as long as the client can write it.
        _share: SegmentCharge,
        /// Its part of the session's budget.
        _charge: Arc<Charge>,
    },
    /// A block. Its tensor is charged.
    Block(Arc<Slab>),
}

impl SlabEntry {
    pub(crate) fn slab(&self) -> &Arc<Slab> {
        match self {
            Self::Shared { slab, .. } | Self::Block(slab) => slab,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.slab().fd()
    }
}

fn no_slab(number: u64) -> Error {
    Error::not_found(format!("this session has no slab {number}")).in_field("slab")
}

impl Resources {
    /// Adds a slab. Returns the number of its segment.
    pub(crate) fn add_slab(&mut self, entry: SlabEntry) -> u64 {
        let segment = self.segments.add_use(entry.fd(), entry.slab().len());
        segment.sent = true;
        let id = segment.id;
        self.slabs.insert(id, entry);
        id
    }

    /// Takes out a slab.
    ///
    /// # Errors
    /// `NotFound` for another number; `Conflict` while the session leases tensors in a slab, which charges it for them.
    pub(crate) fn remove_slab(&mut self, number: u64) -> Result<SlabEntry> {
        let entry = self.slab(number)?;
        let (fd, is_shared) = (entry.fd().as_raw_fd(), matches!(entry, SlabEntry::Shared { .. }));
        if is_shared && self.segments.get(fd).is_some_and(|segment| segment.uses > 1) {
            let message = format!("this session leases tensors in its slab {number}: release them first");
            return Err(Error::new(ErrorKind::Conflict, message).in_field("slab"));
        }
        let entry = self.slabs.remove(&number).ok_or_else(|| no_slab(number))?;
        self.segments.remove_use(fd);
        Ok(entry)
    }

    /// The slab or block with a number.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn slab(&self, number: u64) -> Result<&SlabEntry> {
        self.slabs.get(&number).ok_or_else(|| no_slab(number))
    }

    /// Whether it is the number of a slab, which is charged as a whole.
    pub(super) fn is_shared_slab(&self, number: u64) -> bool {
        matches!(self.slabs.get(&number), Some(SlabEntry::Shared { .. }))
    }

    /// The bytes of blocks without a tensor, and those that are ready for calls.
    pub(crate) fn ready_bytes(&self) -> u64 {
        let blocks: u64 = self.blocks().filter(|block| block.is_empty()).map(|block| block.len() as u64).sum();
        blocks.saturating_add(self.ready_for_calls)
    }

    /// The blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Slab>> {
        self.slabs.values().filter_map(|entry| match entry {
            SlabEntry::Block(slab) => Some(slab),
            SlabEntry::Shared { .. } => None,
        })
    }

    /// Removes holders without leases and reservations. A client that serves others names a holder for each of them.
    pub(super) fn remove_unused_holders(&mut self) {
        let Self { holders, leases, reservations, packs, .. } = self;
        let leased = leases.keys().map(|(_, holder)| holder);
        let reserved = reservations.values().map(|reserved| &reserved.holder);
        let packed = packs.values().map(|(pack, _)| pack.holder());
        let used: HashSet<&Holder> = leased.chain(reserved).chain(packed).collect();
        holders.retain(|_, holder| used.contains(holder));
    }
}
