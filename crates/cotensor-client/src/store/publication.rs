//! Publication of a tensor: its memory, its reservation and the call.

use super::connection::DaemonConnection;
use super::copies::UnreportedCopies;
use super::freed_ranges::OwnSlab;
use super::lease_table::NewLease;
use super::memories::descriptor_of;
use super::reconnect::Reconnector;
use super::session::{PUBLICATIONS, Session};
use super::slabs::{NewSlab, Slabs, whole_units};
use crate::protocol::{self as p, Published, Spec};
use cotensor_core::{
    DType, Device, Error, ErrorKind, Kind, Layout, Memory, Result, Segment, SegmentMut, SlabMemory, size,
};
use cotensor_memory::Slab;
use cotensor_memory::process::available_bytes;
use cotensor_store::backend::{StoreBackend, UnpublishedTensor};
use cotensor_store::{Expected, Holder, Key, Lease, Stats, TensorSpec};
use std::sync::{Arc, Weak};

/// The next block of a series is made only if the system has this many times its length left.
const AVAILABLE_FACTOR_MIN: u64 = 4;

/// The memory of an unpublished tensor.
pub(super) enum Allocation {
    /// A range of a slab or a block.
    Slab(OwnSlab),
    /// Memory of its own, with a reservation at the daemon.
    Own(ReservationGuard),
}

/// A reservation of a session, cancelled on drop unless it was published or became a slab.
pub(super) struct ReservationGuard {
    number: u64,
    generation: u64,
    connection: Arc<DaemonConnection>,
    published: bool,
}

impl ReservationGuard {
    /// Reserves the bytes of a tensor.
    ///
    /// # Errors
    /// The daemon's.
    pub(super) fn reserve(daemon: &Reconnector, params: &p::ReserveParams) -> Result<Self> {
        let (number, generation) = daemon.retry(|session| Ok((reserve(session, params)?, session.generation)))?;
        Ok(Self { number, generation, connection: Arc::clone(&daemon.connection), published: false })
    }

    /// The number for the call that ends the reservation, whatever the answer is. A later session reserves again.
    fn take_in(&mut self, session: &Session, params: &p::ReserveParams) -> Result<u64> {
        if self.generation != session.generation {
            self.number = reserve(session, params)?;
            self.generation = session.generation;
        }
        self.published = true;
        Ok(self.number)
    }
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
    /// The newest version of the name before.
    pub(super) expected: Option<p::Expected>,
    /// Copies to report.
    pub(super) copies: Vec<p::CopyParams>,
    /// Whether an earlier attempt may have published it.
    pub(super) again: bool,
}

impl Allocation {
    /// A range of a slab on the tensor's device. Opens a new slab when the open ones have no room. With `to_fill`, the bytes may have values of
    /// earlier tensors.
    pub(super) fn in_slab(
        daemon: &Reconnector,
        params: &p::ReserveParams,
        len: usize,
        to_fill: bool,
    ) -> Result<(Self, Box<dyn SegmentMut>)> {
        let (slabs, device) = (&daemon.slabs, params.spec.device);
        let shared = |(own, segment)| (Self::Slab(own), segment);
        if let Some(found) = slabs.reserve(device, len, to_fill)? {
            return Ok(shared(found));
        }
        let (least, mut bytes) = slabs.next_bytes(device, len);
        loop {
            match new_slab(daemon, params, bytes, len) {
                // A smaller slab may fit into the budget.
                Err(error) if error.kind() == ErrorKind::OverBudget && bytes > least => {
                    bytes = whole_units(device, (bytes / 2).max(len));
                }
                opened => return opened.map(shared),
            }
        }
    }

    /// A range of `slab`, which its owner has placed.
    pub(super) fn placed(daemon: &Reconnector, slab: &Arc<dyn SlabMemory>) -> Result<Self> {
        daemon.retry(|session| daemon.slabs.open_placed(session, slab)).map(Self::Slab)
    }

    /// A block, whose bytes may have values of earlier tensors. None when the client has enough blocks, also those that other threads have opened
    /// meanwhile.
    pub(super) fn in_block(daemon: &Reconnector, len: usize) -> Result<Option<(Self, Box<dyn SegmentMut>)>> {
        let slabs = &daemon.slabs;
        let free = || slabs.reserve_block(len);
        // One that is being made is there after the wait.
        let found = match free().or_else(|| if slabs.next_block.wait_for(len) { free() } else { None }) {
            Some(found) => Some(found),
            None => match slabs.room_for_block(&daemon.connection.session(), len)? {
                None => None,
                Some(bytes) => {
                    let block = Slab::create(bytes)?;
                    block.prefault()?;
                    match daemon.retry(|session| slabs.open_block_in(session, &block, len)) {
                        // Other threads have taken the room meanwhile: the daemon has the same limits. A block for the next tensor may be free.
                        Err(error) if error.kind() == ErrorKind::Conflict => free(),
                        opened => Some(opened?),
                    }
                }
            },
        };
        Ok(found.map(|(own, segment)| (Self::Slab(own), segment)))
    }

    /// Prefaults a block for a later tensor of `len` bytes. False when the client has enough free ones.
    pub(super) fn prefault_block(daemon: &Reconnector, len: usize) -> Result<bool> {
        let Some(block) = free_block(daemon, len)? else { return Ok(false) };
        match daemon.retry(|session| daemon.slabs.open_free_block_in(session, &block, true)) {
            // As many as the daemon takes.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            opened => opened.map(|()| true),
        }
    }

    /// Makes the next block of a series, if that is possible now.
    pub(super) fn make_next_block(daemon: &Reconnector, len: usize) {
        let has_memory = available_bytes().is_none_or(|left| left / AVAILABLE_FACTOR_MIN >= len as u64);
        if has_memory && let Ok(Some(block)) = free_block(daemon, len) {
            // Without a daemon, or at its limits, the next tensor makes its own block.
            let _ = daemon.slabs.open_free_block_in(&daemon.connection.session(), &block, false);
        }
    }

    /// Memory of its own, which `reserve_in` makes in the memory of the tensor's device after the daemon has reserved
    /// its bytes.
    pub(super) fn reserved(
        daemon: &Reconnector,
        params: &p::ReserveParams,
        reserve_in: impl FnOnce(&dyn Memory) -> Result<Box<dyn SegmentMut>>,
    ) -> Result<(Self, Box<dyn SegmentMut>)> {
        let device = params.spec.device;
        let memory = daemon.memories.of(device).map_err(|error| error.in_field(params.spec.name.as_str()))?;
        let reserved = match ReservationGuard::reserve(daemon, params) {
            // A slab that became empty just now takes whole units of the device.
            Err(error)
                if error.kind() == ErrorKind::OverBudget
                    && daemon.slabs.give_back_unused(&daemon.connection.session(), device) =>
            {
                ReservationGuard::reserve(daemon, params)?
            }
            reserved => reserved?,
        };
        Ok((Self::Own(reserved), reserve_in(memory).map_err(|error| of_full_device(daemon, device, error))?))
    }

    /// Publishes `segment` in a session. Can be repeated in the next session.
    pub(super) fn publish(
        &mut self,
        session: &Session,
        slabs: &Slabs,
        spec: &TensorSpec,
        segment: &Arc<dyn Segment>,
        terms: PublishTerms,
    ) -> Result<Published> {
        match self {
            Self::Own(reserved) => {
                let PublishTerms { holder, ticket, expected, copies, again } = terms;
                let described = Spec::from(spec);
                let fd = descriptor_of(&**segment)?;
                let reservation = reserved.take_in(session, &p::ReserveParams { spec: described, holder })?;
                let params = p::PublishParams { reservation, ticket, expected, copies, again };
                // It waits behind other calls of the session, such as lookups that read spilled tensors.
                Ok(session.call_long::<p::Publish>(&params, vec![fd])?.0)
            }
            Self::Slab(own) => {
                let params = announce(session, slabs, *own, spec, segment, terms)?;
                let answer = session.call_long::<p::PublishSlab>(&params, Vec::new());
                settle(session, slabs, *own, &params, answer.map(|(published, _)| published))
            }
        }
    }
}

/// A new slab of `bytes` bytes on the device of `params`, and a range of `len` bytes in it. The budget of a device has the bytes before the
/// device is asked for them: the daemon may have to evict tensors there.
fn new_slab(
    daemon: &Reconnector,
    params: &p::ReserveParams,
    bytes: usize,
    len: usize,
) -> Result<(OwnSlab, Box<dyn SegmentMut>)> {
    let (slabs, device) = (&daemon.slabs, params.spec.device);
    if device.is_host() {
        let slab = Arc::new(Slab::create(bytes)?) as Arc<dyn SlabMemory>;
        return daemon.retry(|session| slabs.open_in(session, NewSlab::new(&slab, len)?, None));
    }
    let memory = daemon.memories.of(device)?;
    // The rules about which tensors are shared are those of each tensor in it.
    let whole = TensorSpec { kind: Kind::Weight, ..TensorSpec::new(&params.spec.name, DType::U8, &[bytes]).on(device) };
    let params = p::ReserveParams { spec: Spec::from(&whole), holder: params.holder.clone() };
    let mut reserved = ReservationGuard::reserve(daemon, &params)?;
    let slab = memory.create_slab(bytes).map_err(|error| of_full_device(daemon, device, error))?;
    daemon.retry(|session| {
        // First: an error leaves the reservation to its guard.
        let slab = NewSlab::new(&slab, len)?;
        let reservation = reserved.take_in(session, &params)?;
        slabs.open_in(session, slab, Some(reservation))
    })
}

/// `error` of the memory of `device`. Where the device has no room although its budget has, other programs have some of it: the error tells
/// what the store takes.
fn of_full_device(daemon: &Reconnector, device: Device, error: Error) -> Error {
    if device.is_host() || error.kind() != ErrorKind::OverBudget {
        return error;
    }
    let known = daemon.call::<p::Stats>(&p::Empty {}).ok().and_then(|(report, _)| {
        let stats: Stats = serde_json::from_value(report.fields.into()).ok()?;
        stats.devices.into_iter().find(|stats| stats.device == device.to_string())
    });
    let Some(stats) = known else { return error };
    let used = size(stats.memory_usage_bytes);
    let message = error.message();
    Error::new(
        error.kind(),
        format!("{message}; tensors of the store have {used} there with this one (`cotensor who`)"),
    )
}

/// A prefaulted block for a later tensor of `len` bytes; none when the client has enough free ones.
fn free_block(daemon: &Reconnector, len: usize) -> Result<Option<Slab>> {
    let Some(bytes) = daemon.slabs.room_for_free_block(len)? else { return Ok(None) };
    let block = Slab::create(bytes)?;
    block.prefault()?;
    Ok(Some(block))
}

/// The request that publishes a range of a slab.
fn announce(
    session: &Session,
    slabs: &Slabs,
    own: OwnSlab,
    spec: &TensorSpec,
    segment: &Arc<dyn Segment>,
    PublishTerms { holder, ticket, expected, copies, again }: PublishTerms,
) -> Result<p::PublishSlabParams> {
    let freed = slabs.freed();
    let (offset, slab) = (segment.fd_offset() as u64, freed.number(session, own, &**segment)?);
    freed.request(session, own.number, offset, segment)?;
    Ok(p::PublishSlabParams { slab, offset, spec: Spec::from(spec), holder, ticket, expected, copies, again })
}

/// Notes the answer to a request. Without one, the tensor may be published: the next session finds that out.
fn settle(
    session: &Session,
    slabs: &Slabs,
    own: OwnSlab,
    params: &p::PublishSlabParams,
    answer: Result<Published>,
) -> Result<Published> {
    match &answer {
        Ok(_) => slabs.freed().published(own.number, params.offset),
        Err(_) if session.is_closed() => {}
        Err(_) => slabs.freed().refused(own.number, params.offset),
    }
    answer
}

/// The parts of a client that publish its tensors.
pub(super) struct Publisher<'c> {
    pub(super) daemon: &'c Reconnector,
    pub(super) copies: &'c UnreportedCopies,
    /// The client, for the leases.
    pub(super) backend: Weak<dyn StoreBackend>,
}

/// A sealed tensor before its publication.
pub(super) struct FrozenTensor {
    spec: TensorSpec,
    layout: Layout,
    segment: Arc<dyn Segment>,
    holder: Holder,
    place: Allocation,
    key: Option<Key>,
    expected: Expected,
    /// Whether a request to publish it may have reached a daemon.
    is_sent: bool,
}

impl FrozenTensor {
    /// # Errors
    /// `Invalid` for a tensor of another store, `Io` when the memory cannot be sealed.
    pub(super) fn new(tensor: UnpublishedTensor, key: Option<Key>) -> Result<Self> {
        let UnpublishedTensor { spec, layout, segment, holder, expected, tag, .. } = tensor;
        let segment = segment.freeze()?;
        let place = tag.downcast().map_err(|_| Error::invalid("this tensor was reserved in another store"))?;
        Ok(Self { spec, layout, segment, holder, place: *place, key, expected, is_sent: false })
    }

    pub(super) fn publish(&mut self, to: &Publisher<'_>) -> Result<Lease> {
        to.daemon.retry(|session| {
            let terms = self.terms(to)?;
            self.is_sent = true;
            let published = self.place.publish(session, &to.daemon.slabs, &self.spec, &self.segment, terms)?;
            self.enter(to, session, &published)
        })
    }

    /// Whether its memory is a block, which later tensors use again.
    pub(super) fn is_in_block(&self) -> bool {
        matches!(self.place, Allocation::Slab(OwnSlab { is_block: true, .. }))
    }

    /// Each session has tickets of its own.
    fn terms(&self, to: &Publisher<'_>) -> Result<PublishTerms> {
        let ticket = to.daemon.tickets.number(self.key)?;
        let (holder, expected) = (self.holder.name().to_owned(), p::Expected::of(self.expected));
        Ok(PublishTerms { holder, ticket, expected, copies: to.copies.take(), again: self.is_sent })
    }

    fn enter(&self, to: &Publisher<'_>, session: &Session, published: &Published) -> Result<Lease> {
        let (id, index) = (published.id.into(), published.index);
        let (spec, layout, segment) = (self.spec.clone(), self.layout.clone(), Arc::clone(&self.segment));
        let lease = NewLease { id, index, spec, layout, segment, key: self.key };
        to.daemon.leases.enter(session, lease, &self.holder, to.backend.clone())
    }
}

/// Publishes several tensors, each with the computation whose result it is: those in slabs and blocks in one round trip, then one at a time the
/// others, and those whose answer was lost with the daemon.
pub(super) fn publish_each(to: &Publisher<'_>, results: Vec<(UnpublishedTensor, Option<Key>)>) -> Vec<Result<Lease>> {
    let (session, slabs) = (to.daemon.connection.session(), &to.daemon.slabs);
    let (mut tensors, mut requests) = (Vec::new(), Vec::new());
    for (tensor, key) in results {
        let tensor = FrozenTensor::new(tensor, key).and_then(|mut tensor| {
            let Allocation::Slab(own) = tensor.place else { return Ok((tensor, None)) };
            let terms = tensor.terms(to)?;
            // A session that ended has no number for the slab.
            let request = announce(&session, slabs, own, &tensor.spec, &tensor.segment, terms).ok();
            let sent = request.is_some().then_some(own);
            tensor.is_sent = sent.is_some();
            requests.extend(request);
            Ok((tensor, sent))
        });
        tensors.push(tensor);
    }
    let answers = session.call_each::<p::PublishSlab>(&requests, PUBLICATIONS, |_| 0);
    let mut answers = answers.into_iter().zip(&requests);
    let is_lost = || session.connection.closed().is_some();
    let publish = |tensor: Result<(FrozenTensor, Option<OwnSlab>)>| {
        let (mut tensor, sent) = tensor?;
        let Some((own, (answer, request))) = sent.and_then(|own| Some((own, answers.next()?))) else {
            return tensor.publish(to);
        };
        let published = settle(&session, slabs, own, request, answer.map(|(published, _)| published));
        match published.and_then(|published| tensor.enter(to, &session, &published)) {
            Err(_) if is_lost() => tensor.publish(to),
            lease => lease,
        }
    };
    tensors.into_iter().map(publish).collect()
}

fn reserve(session: &Session, params: &p::ReserveParams) -> Result<u64> {
    Ok(session.call_long::<p::Reserve>(params, Vec::new())?.0.reservation)
}
