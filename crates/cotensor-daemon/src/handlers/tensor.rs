//! Reserving, publishing and leasing tensors.

use super::report::count_copies;
use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use crate::state::segment::{Part, Slab, SlabFile, SlabOwner, inode, is_in, own_segment};
use crate::state::session::{Granted, Reserved, Session, SlabEntry};
use cotensor_client::protocol::{
    self as p, CloseSlabParams, Descriptor, Empty, GetParams, IdParams, LeaseParams, Present, PublishParams,
    PublishSlabParams, Published, ReleaseParams, RemoveParams, ReservationParams, ReserveParams, ReserveResult,
    SegmentParams, SlabParams, SlabResult,
};
use cotensor_core::{Error, ErrorKind, Result, Segment};
use cotensor_memory::{BLOCK_BYTES_MAX, BlockLimits};
use cotensor_store::{Holder, Lease, Publication, SegmentCharge, TensorSpec, TensorStore};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most slabs of one session.
const SLABS_MAX: usize = 1024;

pub(super) async fn reserve(caller: Caller, params: ReserveParams) -> Answer<ReserveResult> {
    let holder = caller.holder(&params.holder)?;
    let spec = params.spec.to_domain()?;
    let own = caller.charge(spec.device.allocated_bytes(spec.layout()?.size_bytes() as u64))?;
    let charge = caller.daemon.store.grant(&spec)?;
    let mut granted = Granted::new(&caller.session);
    let reservation = granted.reservation(Reserved { spec, charge, own, holder })?;
    Ok(Reply::granting(ReserveResult { reservation }, granted))
}

pub(super) async fn publish(mut caller: Caller, params: PublishParams) -> Answer<Published> {
    // First: an error ends the reservation, too.
    let Reserved { spec, charge, own, holder } = caller.lock().reservations.take(params.reservation, "reservation")?;
    let fd = caller.fd()?;
    let layout = spec.layout()?;
    let segment = own_segment(fd, layout.size_bytes(), spec.device)?;
    let terms = terms_of(&caller, params.ticket, params.expected)?;
    count_copies(&caller.daemon, &params.copies)?;
    if params.again
        && let Some(lease) = published_before(&caller, &spec, &terms, &holder, segment.fd(), 0)
    {
        return Ok(caller.grant_published(lease, &holder, Some(own))?.into());
    }
    caller.session.end_mark().check()?;
    let lease = caller.daemon.store.adopt(spec, layout, segment, charge, terms, &holder)?;
    Ok(caller.grant_published(lease, &holder, Some(own))?.into())
}

/// The newest version of the name if it lies in this memory, `offset` bytes from its start: the client repeats its publication, whose answer
/// was lost with the session or the server.
fn published_before(
    caller: &Caller,
    spec: &TensorSpec,
    terms: &Publication,
    holder: &Holder,
    fd: Option<BorrowedFd<'_>>,
    offset: usize,
) -> Option<Lease> {
    let (fd, layout) = (fd.filter(|_| spec.device.is_host())?, spec.layout().ok()?);
    // Without a spilled version, which lies in no memory of a client.
    let version = caller.daemon.store.newest(&spec.name)?.version;
    let newest = caller.daemon.store.lease_version(&spec.name, version, holder).ok()?;
    (newest.key() == terms.key && is_in(&newest, fd, offset, &layout)).then_some(newest)
}

fn terms_of(caller: &Caller, ticket: Option<u64>, expected: Option<p::Expected>) -> Result<Publication> {
    let key = ticket.map(|ticket| caller.ticket_key(ticket)).transpose()?;
    Ok(Publication { key, expected: p::Expected::to_domain(expected) })
}

pub(super) async fn discard(caller: Caller, params: ReservationParams) -> Answer<Empty> {
    let reserved = caller.lock().reservations.take(params.reservation, "reservation")?;
    drop(reserved);
    Ok(NOTHING.into())
}

pub(super) async fn open_slab(mut caller: Caller, params: SlabParams) -> Answer<SlabResult> {
    // First: an error ends the reservation, too.
    let reserved =
        params.reservation.map(|number| caller.lock().reservations.take(number, "reservation")).transpose()?;
    if reserved.is_some() && (params.block || params.device.is_host()) {
        return Err(Error::invalid("only a slab on a device takes the place of one").in_field("reservation"));
    }
    if caller.daemon.config.small_bytes_max == 0 {
        return Err(Error::new(
            ErrorKind::Refused,
            "this daemon takes no slabs: every tensor needs sealed memory of its own",
        ));
    }
    if caller.lock().slabs.len() >= SLABS_MAX {
        return Err(Error::new(ErrorKind::Conflict, format!("{SLABS_MAX} slabs are open in this session")));
    }
    let len = usize::try_from(params.bytes).map_err(|_| Error::invalid("too many bytes").in_field("bytes"))?;
    let fd = caller.fd()?;
    let (daemon, inode) = (&caller.daemon, inode(&fd)?);
    let file = SlabFile { fd, inode, len, device: params.device };
    let owner: Arc<dyn SlabOwner> = Arc::clone(&caller.session) as Arc<dyn SlabOwner>;
    if params.block {
        return open_block(&caller, file, &owner);
    }
    if !params.device.is_host() {
        return open_device_slab(&caller, file, reserved, &owner);
    }
    let own = caller.charge(params.bytes)?;
    // A slab of a former server is charged already and still contains its tensors.
    let (slab, share) = daemon.slabs.open(&daemon.store, file, &owner)?;
    let waited = daemon.orphans().take_slab(inode);
    drop(waited);
    let entry = SlabEntry::Shared { slab: Arc::clone(&slab), _share: share, _charge: own };
    let number = caller.lock().add_slab(entry);
    let live = slab.belongs(&owner, number);
    Ok(SlabResult { slab: number, live }.into())
}

fn open_device_slab(
    caller: &Caller,
    file: SlabFile,
    reserved: Option<Reserved>,
    owner: &Arc<dyn SlabOwner>,
) -> Answer<SlabResult> {
    let (device, bytes) = (file.device, file.len as u64);
    let (own, share) = match reserved {
        Some(Reserved { spec, charge, own, .. }) => {
            if spec.device != device || spec.layout()?.size_bytes() != file.len {
                let message = format!("it is not of {bytes} bytes on {device}");
                return Err(Error::invalid(message).in_field("reservation"));
            }
            (own, SegmentCharge::of_reserved(charge))
        }
        None => {
            let own = caller.charge(device.allocated_bytes(bytes))?;
            (own, caller.daemon.store.charge_segment(device, bytes)?)
        }
    };
    // Always a new one: see `Slabs`.
    let slab = Arc::new(Slab::new(Arc::new(file.fd.into()), file.len, share.charge())?);
    let entry = SlabEntry::Shared { slab: Arc::clone(&slab), _share: share, _charge: own };
    let number = caller.lock().add_slab(entry);
    slab.belongs(owner, number);
    Ok(SlabResult { slab: number, live: Vec::new() }.into())
}

fn open_block(caller: &Caller, file: SlabFile, owner: &Arc<dyn SlabOwner>) -> Answer<SlabResult> {
    let (inode, len) = (file.inode, file.len);
    let daemon = &caller.daemon;
    // A client keeps these limits itself.
    let BlockLimits { bytes_max, count_max, .. } = BlockLimits::default();
    let (bytes, count) = caller.lock().blocks().fold((0, 0), |(bytes, count), block| (bytes + block.len(), count + 1));
    // A length that no block can have is refused by `open_block`.
    let is_too_long = len <= BLOCK_BYTES_MAX && len > bytes_max.saturating_sub(bytes);
    if count >= count_max || is_too_long {
        let message = format!("{count} blocks of {bytes} bytes are open in this session");
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    // A tensor from a former connection of the client may lie in it.
    let slab = daemon.slabs.open_block(file, owner)?;
    let waited = daemon.orphans().take_slab(inode);
    drop(waited);
    let number = caller.lock().add_slab(SlabEntry::Block(Arc::clone(&slab)));
    let live = slab.belongs(owner, number);
    Ok(SlabResult { slab: number, live }.into())
}

pub(super) async fn close_slab(caller: Caller, params: CloseSlabParams) -> Answer<Empty> {
    let closed = caller.lock().remove_slab(params.slab)?;
    drop(closed);
    Ok(NOTHING.into())
}

pub(super) async fn publish_slab(caller: Caller, params: PublishSlabParams) -> Answer<Published> {
    let spec = params.spec.to_domain()?;
    let holder = caller.holder(&params.holder)?;
    let layout = spec.layout()?;
    let (slab, is_block) = match caller.lock().slab(params.slab)? {
        entry @ SlabEntry::Shared { .. } => (Arc::clone(entry.slab()), false),
        entry @ SlabEntry::Block(_) => (Arc::clone(entry.slab()), true),
    };
    // After the tensor is in the store, nothing may fail: the client uses the range of a failed request again.
    let own = is_block.then(|| caller.charge(layout.size_bytes() as u64)).transpose()?;
    // The charge of a block lasts until its tensor is in the store.
    let share = slab.charge(&caller.daemon.store)?;
    let offset = usize::try_from(params.offset).unwrap_or(usize::MAX);
    let part = Arc::new(Part::new(slab, offset, layout.size_bytes(), &*caller.session)?);
    let terms = terms_of(&caller, params.ticket, params.expected)?;
    if params.again
        && let Some(lease) = published_before(&caller, &spec, &terms, &holder, part.fd(), offset)
    {
        count_copies(&caller.daemon, &params.copies)?;
        return Ok(caller.grant_published(lease, &holder, own)?.into());
    }
    let store = &caller.daemon.store;
    store.check_shared(&spec)?;
    let charge = store.grant_in(&share.charge(), &spec)?;
    count_copies(&caller.daemon, &params.copies)?;
    // Memory may have been spilled meanwhile, and the client's next session has repeated the call.
    caller.session.end_mark().check()?;
    let lease = store.adopt(spec, layout, Arc::clone(&part) as Arc<dyn Segment>, charge, terms, &holder)?;
    part.published();
    Ok(caller.grant_published(lease, &holder, own)?.into())
}

/// Answers with the description of a leased tensor, and its descriptor if the session does not have it.
fn granted(session: &Arc<Session>, lease: Lease, holder: &Holder) -> Answer<Descriptor> {
    let mut granted = Granted::new(session);
    let value = granted.lease(lease, holder)?;
    Ok(Reply::granting(value, granted))
}

pub(super) async fn get(caller: Caller, params: GetParams) -> Answer<Descriptor> {
    let holder = caller.holder(&params.holder)?;
    let lease = caller.daemon.store.get(&params.name, &holder)?;
    granted(&caller.session, lease, &holder)
}

pub(super) async fn lease(caller: Caller, params: LeaseParams) -> Answer<Descriptor> {
    let holder = caller.holder(&params.holder)?;
    let lease = caller.daemon.store.lease(params.id.into(), &holder)?;
    granted(&caller.session, lease, &holder)
}

pub(super) async fn release(caller: Caller, params: ReleaseParams) -> Answer<Empty> {
    // Releases all leases that exist. The answer is the first error.
    let release = |lease: &LeaseParams| caller.release(lease.id.into(), &caller.holder(&lease.holder)?);
    let outcomes: Vec<Result<()>> = params.leases.iter().map(release).collect();
    outcomes.into_iter().collect::<Result<()>>()?;
    Ok(NOTHING.into())
}

pub(super) async fn segment_fd(caller: Caller, params: SegmentParams) -> Answer<Empty> {
    let mut granted = Granted::new(&caller.session);
    granted.segment(params.segment)?;
    Ok(Reply::granting(NOTHING, granted))
}

pub(super) async fn has(caller: Caller, params: IdParams) -> Answer<Present> {
    Ok(Present { present: caller.daemon.store.has(params.id.into()) }.into())
}

pub(super) async fn remove(caller: Caller, params: RemoveParams) -> Answer<Empty> {
    caller.daemon.store.remove_version(&params.name, params.id.map(Into::into))?;
    Ok(NOTHING.into())
}
