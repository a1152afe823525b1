//! The leases of a session.

use super::resources::{LeaseEntry, Resources};
use super::session::Session;
use crate::state::segment::file_bytes;
use cotensor_client::protocol::{Descriptor, Id, Published, SegmentInfo, Spec, Transport};
use cotensor_core::{Error, MemoryKind, Result, Segment};
use cotensor_rpc::FRAME_FDS_MAX;
use cotensor_store::backend::Charge;
use cotensor_store::{Holder, Lease, TensorId};
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The capacity of the lease table is not reduced below this.
const CAPACITY_MIN: usize = 1024;

/// A use of a segment, until it is dropped.
pub(crate) struct SegmentUse<'a> {
    session: &'a Session,
    fd: RawFd,
}

impl Drop for SegmentUse<'_> {
    fn drop(&mut self) {
        self.session.lock().segments.remove_use(self.fd);
    }
}

/// The daemon's descriptor of a segment.
fn fd_of(segment: &dyn Segment) -> Result<BorrowedFd<'_>> {
    segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))
}

/// The bytes of the client's budget that a lease takes: those that the device allocates for the tensor, or those of a part of a segment
/// or slab that several tensors share.
fn charged_bytes(lease: &Lease) -> u64 {
    let (segment, bytes) = (lease.segment(), lease.layout().size_bytes());
    let has_all = segment.kind() != MemoryKind::Slab && bytes == segment.len();
    if has_all { segment.device().allocated_bytes(bytes as u64) } else { bytes as u64 }
}

fn not_leased(id: TensorId) -> Error {
    Error::not_found(format!("this session does not hold version {} of tensor {}", id.version, id.name_id))
}

impl Session {
    /// Adds a lease and describes the tensor to the client. Adds the segment's descriptor to `fds` if the client does
    /// not have it.
    pub(crate) fn grant(&self, lease: Lease, holder: &Holder, fds: &mut Vec<OwnedFd>) -> Result<Descriptor> {
        let (segment, layout) = (lease.segment(), lease.layout());
        let (slab, device) = (segment.kind() == MemoryKind::Slab, segment.device());
        let offset_bytes = layout.offset_bytes() + segment.fd_offset();
        let (spec, strides) = (Spec::from(&lease.spec()).with_layout(layout), layout.strides().to_vec());
        let sent = fds.len();
        let (Published { id, segment, index }, bytes) = self.add_lease(lease, holder, None, fds)?;
        let segment = SegmentInfo { id: segment, bytes, slab, device };
        Ok(Descriptor { id, spec, strides, offset_bytes, segment, fd: fds.len() > sent, index })
    }

    /// Adds a lease of a tensor in memory that the client made. `own` is its part of the session's budget.
    pub(crate) fn grant_published(&self, lease: Lease, holder: &Holder, own: Option<Arc<Charge>>) -> Result<Published> {
        let _in_use = self.use_client_segment(lease.segment())?;
        Ok(self.add_lease(lease, holder, own, &mut Vec::new())?.0)
    }

    /// Adds a lease. Also returns the size of its segment in bytes.
    fn add_lease(
        &self,
        lease: Lease,
        holder: &Holder,
        own: Option<Arc<Charge>>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(Published, u64)> {
        let fd = fd_of(lease.segment())?;
        let index = self.outbox().and_then(|_| self.events.slots.slot_of(&self.store, &lease));
        // Dropped after the lock.
        let mut given = Vec::new();
        let mut resources = self.lock();
        let key = (lease.id(), holder.clone());
        let is_leased = resources.leases.contains_key(&key);
        let in_own_slab =
            || resources.segments.get(fd.as_raw_fd()).is_some_and(|known| resources.is_shared_slab(known.id));
        let charge = if is_leased || in_own_slab() {
            None
        } else {
            let charge = || self.charge_giving_up(charged_bytes(&lease), &mut given);
            Some(own.map_or_else(charge, Ok)?)
        };
        let known = resources.segments.add_use(fd, file_bytes(lease.segment()));
        let (segment, bytes) = (known.id, known.bytes);
        if self.outbox().is_some() && !known.sent && fds.len() < FRAME_FDS_MAX {
            match fd.try_clone_to_owned() {
                Ok(copy) => fds.push(copy),
                Err(error) => {
                    resources.segments.remove_use(fd.as_raw_fd());
                    return Err(Error::io("duplicating a descriptor", &error));
                }
            }
            known.sent = true;
        }
        if is_leased {
            // One lease of the store represents all leases of the client under this holder.
            resources.segments.remove_use(fd.as_raw_fd());
        }
        let published = Published { id: lease.id().into(), segment, index };
        let surplus = match resources.leases.entry(key) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().count += 1;
                Some(lease)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(LeaseEntry { lease, count: 1, _charge: charge });
                None
            }
        };
        drop(resources);
        drop(surplus);
        Ok((published, bytes))
    }

    /// Adds a lease of the client's session at the former server. Returns the tensor.
    ///
    /// # Errors
    /// `Unsupported` for a segment without a descriptor.
    pub(crate) fn resume_lease(&self, lease: Lease, holder: &Holder) -> Result<Id> {
        let (id, fd) = (lease.id(), fd_of(lease.segment())?);
        let mut resources = self.lock();
        let Resources { leases, segments, .. } = &mut *resources;
        match leases.entry((id, holder.clone())) {
            // The client named this lease twice. It counts once, as at the client.
            Entry::Occupied(_) => {
                drop(resources);
                drop(lease);
            }
            Entry::Vacant(vacant) => {
                // The client keeps its leases also when they exceed the budget of this server.
                let charge = self.budget.take(charged_bytes(&lease));
                segments.add_use(fd, file_bytes(lease.segment()));
                vacant.insert(LeaseEntry { lease, count: 1, _charge: charge });
            }
        }
        Ok(id.into())
    }

    /// Uses a segment that the client made and whose descriptor it has.
    ///
    /// # Errors
    /// `Unsupported` for a segment without a descriptor.
    pub(crate) fn use_client_segment(&self, segment: &dyn Segment) -> Result<SegmentUse<'_>> {
        let fd = fd_of(segment)?;
        self.lock().segments.add_use(fd, file_bytes(segment)).sent = true;
        Ok(SegmentUse { session: self, fd: fd.as_raw_fd() })
    }

    /// A copy of the session's lease of a tensor, under any holder.
    ///
    /// # Errors
    /// `NotFound` for a tensor that the session does not lease.
    pub(crate) fn lease_of(&self, id: TensorId) -> Result<Lease> {
        let resources = self.lock();
        let found = resources.leases.iter().find(|((leased, _), _)| *leased == id);
        found.ok_or_else(|| not_leased(id))?.1.lease.try_clone()
    }

    /// Releases one of the client's leases.
    ///
    /// # Errors
    /// `NotFound` for a lease that the session does not have.
    pub(crate) fn release(&self, id: TensorId, holder: &Holder) -> Result<()> {
        let mut resources = self.lock();
        let key = (id, holder.clone());
        let entry = resources.leases.get_mut(&key).ok_or_else(|| not_leased(id))?;
        entry.count -= 1;
        if entry.count > 0 {
            return Ok(());
        }
        let released = resources.leases.remove(&key);
        let left = resources.leases.len();
        if resources.leases.capacity() > CAPACITY_MIN.max(4 * left) {
            resources.leases.shrink_to(2 * left);
        }
        if let Some(Ok(fd)) = released.as_ref().map(|entry| fd_of(entry.lease.segment())) {
            resources.segments.remove_use(fd.as_raw_fd());
        }
        // Freeing a tensor can take long. Other calls of this session do not wait for it.
        drop(resources);
        drop(released);
        Ok(())
    }

    /// Notes that the client does not have the descriptor of a segment: the answer that it was in was not sent.
    pub(super) fn forget_sent(&self, segment: u64) {
        if let Some((_, known)) = self.lock().segments.find(segment) {
            known.sent = false;
        }
    }

    /// The descriptor of a segment in which the session leases a tensor.
    ///
    /// # Errors
    /// `NotFound` for another segment; `Unsupported` over HTTP.
    pub(crate) fn segment_fd(&self, segment: u64) -> Result<OwnedFd> {
        if self.transport() == Transport::Http {
            return Err(Error::unsupported("descriptors travel on the Unix socket only"));
        }
        let mut resources = self.lock();
        let Resources { leases, segments, .. } = &mut *resources;
        let missing =
            || Error::not_found(format!("this session holds nothing in segment {segment}")).in_field("segment");
        let (number, known) = segments.find(segment).ok_or_else(missing)?;
        let in_segment = |entry: &&LeaseEntry| fd_of(entry.lease.segment()).is_ok_and(|fd| fd.as_raw_fd() == number);
        let entry = leases.values().find(in_segment).ok_or_else(missing)?;
        let fd = fd_of(entry.lease.segment())?;
        known.sent = true;
        fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))
    }
}
