//! Publication of a tensor: its memory, its reservation and the call.

use super::connection::DaemonConnection;
use super::memories::descriptor_of;
use super::reconnect::Reconnector;
use super::session::Session;
use super::slabs::{Slabs, whole_pages};
use crate::protocol::{self as p, Published, Spec};
use cotensor_core::{ErrorKind, Memory, Result, Segment, SegmentMut};
use cotensor_memory::Slab;
use cotensor_store::TensorSpec;
use std::sync::Arc;

/// The memory of an unpublished tensor.
pub(super) enum Placement {
    /// A range of a slab, by this client's number.
    Slab(u64),
    /// Memory of its own, with a reservation at the daemon.
    Own(ReservationGuard),
}

/// A reservation of a session, cancelled on drop unless it was published.
pub(super) struct ReservationGuard {
    number: u64,
    generation: u64,
    connection: Arc<DaemonConnection>,
    published: bool,
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        let session = self.connection.session();
        if !self.published && session.generation == self.generation {
            session.notify::<p::Discard>(&p::ReservationParams { reservation: self.number });
        }
    }
}

/// How a tensor is published.
pub(super) struct PublishTerms {
    /// The holder of this process's lease.
    pub(super) holder: String,
    /// The claim of which it is a result.
    pub(super) ticket: Option<u64>,
    /// Copies to report.
    pub(super) copies: Vec<p::CopyParams>,
}

impl Placement {
    /// A range of a slab. Opens a new slab when the open ones have no room.
    pub(super) fn in_slab(daemon: &Reconnector, len: usize) -> Result<(Self, Box<dyn SegmentMut>)> {
        let slabs = &daemon.slabs;
        if let Some((slab, segment)) = slabs.reserve(len)? {
            return Ok((Self::Slab(slab), segment));
        }
        let (least, mut bytes) = slabs.next_bytes(len);
        loop {
            let slab = Slab::create(bytes)?;
            match daemon.retry(|session| slabs.open_in(session, &slab, len)) {
                // A smaller slab may fit into the budget.
                Err(error) if error.kind() == ErrorKind::OverBudget && bytes > least => {
                    bytes = whole_pages((bytes / 2).max(len));
                }
                opened => return opened.map(|(slab, segment)| (Self::Slab(slab), segment)),
            }
        }
    }

    /// Memory of its own, which `reserve_in` makes in the memory of the tensor's device after the daemon has reserved
    /// its bytes.
    pub(super) fn reserved(
        daemon: &Reconnector,
        params: &p::ReserveParams,
        reserve_in: impl FnOnce(&dyn Memory) -> Result<Box<dyn SegmentMut>>,
    ) -> Result<(Self, Box<dyn SegmentMut>)> {
        let memory =
            daemon.memories.of(params.spec.device).map_err(|error| error.in_field(params.spec.name.as_str()))?;
        let (number, generation) = daemon.retry(|session| Ok((reserve(session, params)?, session.generation)))?;
        let reserved =
            ReservationGuard { number, generation, connection: Arc::clone(&daemon.connection), published: false };
        Ok((Self::Own(reserved), reserve_in(memory)?))
    }

    /// Publishes `segment` in a session. Can be repeated in the next session.
    pub(super) fn publish(
        &mut self,
        session: &Session,
        slabs: &Slabs,
        spec: &TensorSpec,
        segment: &Arc<dyn Segment>,
        PublishTerms { holder, ticket, copies }: PublishTerms,
    ) -> Result<Published> {
        let described = Spec::from(spec);
        match self {
            Self::Own(reserved) => {
                let fd = descriptor_of(&**segment)?;
                if reserved.generation != session.generation {
                    reserved.number = reserve(session, &p::ReserveParams { spec: described, holder })?;
                    reserved.generation = session.generation;
                }
                let params = p::PublishParams { reservation: reserved.number, ticket, copies };
                reserved.published = true;
                Ok(session.call::<p::Publish>(&params, vec![fd])?.0)
            }
            Self::Slab(own) => {
                let freed = slabs.freed();
                let (offset, slab) = (segment.fd_offset() as u64, freed.number(session, *own, &**segment)?);
                // Before the call: the daemon may report at once that the range has no leases.
                freed.keep(*own, offset, segment);
                let params = p::PublishSlabParams { slab, offset, spec: described, holder, ticket, copies };
                let published = session.call::<p::PublishSlab>(&params, Vec::new());
                // Without an answer the tensor may be published. The next session reports that.
                if published.is_err() && session.connection.closed().is_none() {
                    freed.release(*own, offset);
                }
                Ok(published?.0)
            }
        }
    }
}

fn reserve(session: &Session, params: &p::ReserveParams) -> Result<u64> {
    Ok(session.call_long::<p::Reserve>(params, Vec::new())?.0.reservation)
}
