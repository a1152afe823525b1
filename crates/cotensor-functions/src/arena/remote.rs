//! Slabs of the other end of a connection.

use cotensor_client::protocol::provider as p;
use cotensor_core::{Device, Error, ErrorKind, MemoryKind, Result, Segment};
use cotensor_memory::{Guarantee, SealedMemfd, check_no_holes, check_sealed};
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// The most slabs of the other end. It has at most half as many by its own limits; closed ones may have readers still.
const SLABS_MAX: usize = 288;
/// The most bytes of slabs of the other end, twice the limits of [`super::local`].
const BYTES_MAX: usize = 288 << 20;

/// The slabs that this end reads.
#[derive(Default)]
pub(super) struct RemoteSlabs {
    /// By the other end's numbers.
    open: HashMap<u64, Arc<SealedMemfd>>,
    /// Closed ones, whose tensors may still have leases.
    closed: Vec<Weak<SealedMemfd>>,
}

impl RemoteSlabs {
    /// Maps a slab.
    ///
    /// # Errors
    /// `Refused` for memory that is not sealed; `Conflict` for a slab that is open, or one too many.
    pub(super) fn open(&mut self, params: &p::OpenSlabParams, fd: OwnedFd) -> Result<()> {
        let len = usize::try_from(params.bytes).map_err(|_| Error::invalid("a slab beyond the address space"))?;
        let conflict = |message| Err(Error::new(ErrorKind::Conflict, message));
        if self.open.contains_key(&params.slab) {
            return conflict(format!("slab {} is open already", params.slab));
        }
        let mapped = self.mapped();
        if mapped.len() >= SLABS_MAX {
            return conflict(format!("more than {SLABS_MAX} slabs"));
        }
        if mapped.into_iter().fold(len, usize::saturating_add) > BYTES_MAX {
            return conflict(format!("more than {BYTES_MAX} bytes of slabs"));
        }
        check_sealed(&fd, len, Guarantee::ProducerOnly)?;
        check_no_holes(&fd, len)?;
        let memory = Arc::new(SealedMemfd::open(fd, len, Guarantee::ProducerOnly)?);
        self.open.insert(params.slab, memory);
        Ok(())
    }

    /// The lengths of the slabs that are mapped.
    fn mapped(&mut self) -> Vec<usize> {
        let mut lengths: Vec<_> = self.open.values().map(|memory| memory.len()).collect();
        self.closed.retain(|closed| closed.upgrade().map(|memory| lengths.push(memory.len())).is_some());
        lengths
    }

    /// Takes out slabs. Each is unmapped after its last tensor.
    pub(super) fn close(&mut self, slabs: &[u64]) -> Vec<Arc<SealedMemfd>> {
        let closed: Vec<_> = slabs.iter().filter_map(|slab| self.open.remove(slab)).collect();
        self.closed.retain(|closed| closed.strong_count() > 0);
        self.closed.extend(closed.iter().map(Arc::downgrade));
        closed
    }

    /// # Errors
    /// `NotFound` for a slab that is not open.
    pub(super) fn get(&self, slab: u64) -> Result<Arc<SealedMemfd>> {
        let found = self.open.get(&slab).map(Arc::clone);
        found.ok_or_else(|| Error::not_found(format!("slab {slab} is not open")))
    }

    pub(super) fn has_slabs(&self) -> bool {
        !self.open.is_empty()
    }
}

/// Announces ranges that this end no longer reads.
pub(super) trait Release: Send + Sync {
    fn release(&self, range: p::ArenaRange);
}

/// A range of a slab of the other end. Dropping it releases the range.
pub(super) struct RemoteRange {
    part: Arc<dyn Segment>,
    range: p::ArenaRange,
    arena: Weak<dyn Release>,
}

impl RemoteRange {
    pub(super) fn new(part: Arc<dyn Segment>, range: p::ArenaRange, arena: Weak<dyn Release>) -> Self {
        Self { part, range, arena }
    }
}

impl Drop for RemoteRange {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.upgrade() {
            arena.release(self.range);
        }
    }
}

impl Segment for RemoteRange {
    fn len(&self) -> usize {
        self.part.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.part.as_any()
    }

    fn device(&self) -> Device {
        self.part.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.part.bytes()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.part.fd()
    }

    fn fd_offset(&self) -> usize {
        self.part.fd_offset()
    }
}
