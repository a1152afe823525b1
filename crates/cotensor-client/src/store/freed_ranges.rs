//! Published ranges of slabs, which are used again after the daemon reports that no lease is left.

use super::memories::descriptor_of;
use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Result, Segment};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A slab of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnSlab {
    pub(super) number: u64,
    pub(super) is_block: bool,
    /// Its length.
    pub(super) bytes: usize,
}

/// Published ranges of slabs. A range is used again after the daemon reports that it has no leases.
#[derive(Clone, Default)]
pub(super) struct FreedRanges(Arc<Mutex<Ranges>>);

#[derive(Default)]
struct Ranges {
    generation: u64,
    /// This client's slab numbers by the session's.
    slabs: HashMap<u64, u64>,
    /// By this client's slab number and the offset.
    parts: HashMap<(u64, u64), Arc<dyn Segment>>,
    /// Notifications about slabs whose numbers are not known yet.
    early: Vec<p::FreedParams>,
}

impl FreedRanges {
    /// Handles a notification on the connection of `generation`.
    pub(super) fn add(&self, generation: u64, params: &p::FreedParams) {
        let mut published = lock(&self.0);
        if published.generation != generation {
            return;
        }
        let Some(&slab) = published.slabs.get(&params.slab) else {
            return published.early.push(params.clone());
        };
        let freed: Vec<_> = params.offsets.iter().map(|&offset| published.parts.remove(&(slab, offset))).collect();
        drop(published);
        drop(freed);
    }

    /// Starts the session of `generation`, which has no slab yet.
    pub(super) fn begin(&self, generation: u64) {
        let mut published = lock(&self.0);
        published.generation = generation;
        published.slabs.clear();
        published.early.clear();
    }

    /// Registers the session's number of a slab whose live tensors are at the offsets `live`.
    pub(super) fn opened(&self, slab: u64, number: u64, live: &[u64]) {
        let mut published = lock(&self.0);
        published.slabs.insert(number, slab);
        let early: Vec<p::FreedParams> = published.early.extract_if(.., |freed| freed.slab == number).collect();
        let freed = |offset: &u64| !live.contains(offset) || early.iter().any(|freed| freed.offsets.contains(offset));
        let gone: Vec<_> = published.parts.extract_if(|(known, offset), _| *known == slab && freed(offset)).collect();
        drop(published);
        drop(gone);
    }

    /// Keeps a published range until the daemon reports that it has no leases.
    pub(super) fn keep(&self, slab: u64, offset: u64, segment: &Arc<dyn Segment>) {
        lock(&self.0).parts.insert((slab, offset), Arc::clone(segment));
    }

    /// Releases a range that was not published.
    pub(super) fn release(&self, slab: u64, offset: u64) {
        let part = lock(&self.0).parts.remove(&(slab, offset));
        drop(part);
    }

    /// The session's number of the slab in which `range` lies. A slab that was retired with the last daemon, on a device with the last
    /// session, is opened again for a range that was not published yet.
    pub(super) fn number(&self, session: &Session, slab: OwnSlab, range: &dyn Segment) -> Result<u64> {
        {
            let published = lock(&self.0);
            if published.generation != session.generation {
                return Err(session.replaced());
            }
            if let Some((number, _)) = published.slabs.iter().find(|(_, own)| **own == slab.number) {
                return Ok(*number);
            }
        }
        let whole = descriptor_of(range)?;
        let (bytes, block, device) = (slab.bytes as u64, slab.is_block, range.device());
        let params = p::SlabParams { bytes, block, device, reservation: None };
        let opened = session.call_long::<p::OpenSlab>(&params, vec![whole])?.0;
        self.opened(slab.number, opened.slab, &opened.live);
        Ok(opened.slab)
    }

    /// Releases the ranges of slabs that are not used again: those for which `is_lost` is true.
    pub(super) fn lose(&self, is_lost: impl Fn(u64) -> bool) {
        let lost: Vec<_> = lock(&self.0).parts.extract_if(|(slab, _), _| is_lost(*slab)).collect();
        drop(lost);
    }

    /// Forgets a slab. Returns the session's number of it.
    pub(super) fn close(&self, slab: u64) -> Option<u64> {
        let mut published = lock(&self.0);
        let number = published.slabs.iter().find(|(_, own)| **own == slab).map(|(number, _)| *number)?;
        published.slabs.remove(&number);
        Some(number)
    }
}
