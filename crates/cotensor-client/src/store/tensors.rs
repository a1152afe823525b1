//! Tensors by name: lookups, reservations and removals.

use super::client_store::ClientStore;
use super::publication::{Allocation, ReservationGuard};
use super::session::LOOKUPS;
use crate::protocol::{self as p, Spec};
use cotensor_core::{Error, ErrorKind, HeapMemory, Kind, Layout, Result, SegmentMut, SlabMemory};
use cotensor_store::backend::UnpublishedTensor;
use cotensor_store::{Expected, Holder, Lease, Reservation, TensorId, TensorSpec, TensorStore};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often idle memory is looked for. With the time after which a block is idle, memory is given back within ten seconds.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(2);
/// How long the daemon has to answer meanwhile. The store is held for that time.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Which memory a new tensor gets.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// A range of a slab for a small tensor, else memory of its own.
    Any {
        /// Whether the bytes may have values of earlier tensors.
        to_fill: bool,
    },
    /// A block, unless the client has enough of them or none fits; then as to fill.
    Block,
    /// On the host, sealed memory of its own, also for a small tensor: this process could write a slab.
    Sealed,
    /// Memory of its own also for a small tensor: a slab stays writable through an address that the caller keeps.
    Aliased,
}

impl ClientStore {
    fn reserve_in(&self, spec: TensorSpec, holder: &Holder, wanted: Wanted) -> Result<Reservation> {
        let layout = spec.layout().map_err(|error| error.in_field(spec.name.as_str()))?;
        let len = layout.size_bytes();
        spec.check_names()?;
        self.refuse(&spec, len)?;
        let is_sealed = spec.kind == Kind::Weight && wanted != Wanted::Aliased && spec.device.is_host();
        let wanted = if is_sealed { Wanted::Sealed } else { wanted };
        let (allocation, segment) = self.allocate(&reserve_params(&spec, holder.name()), len, wanted)?;
        self.unpublished(spec, layout, segment, holder, allocation)
    }

    /// Reserves a tensor that exists: `segment` is its range of `slab`, which no other tensor has. Publication copies nothing. The range is
    /// dropped after the last lease of all processes; while this process does not learn of that, it stays.
    ///
    /// # Errors
    /// `Refused` for a daemon that takes no slabs, and for tensors that it does not share; `OverBudget` when the budget of the device has no room
    /// for all of the slab; `Conflict` with more slabs than a session may have.
    pub fn reserve_placed(
        &self,
        spec: TensorSpec,
        slab: &Arc<dyn SlabMemory>,
        segment: Box<dyn SegmentMut>,
        holder: &Holder,
    ) -> Result<Reservation> {
        let layout = spec.layout().map_err(|error| error.in_field(spec.name.as_str()))?;
        spec.check_names()?;
        self.refuse(&spec, layout.size_bytes())?;
        if self.small_bytes_max == 0 {
            let message = "the daemon gives each tensor sealed memory of its own (--seal-all)";
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let allocation = Allocation::placed(&self.daemon, slab)?;
        self.give_back_later();
        self.unpublished(spec, layout, segment, holder, allocation)
    }

    fn unpublished(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Box<dyn SegmentMut>,
        holder: &Holder,
        allocation: Allocation,
    ) -> Result<Reservation> {
        let charge = self.private.take_unchecked(0).into();
        let (holder, tag, expected) = (holder.clone(), Box::new(allocation), Expected::Any);
        let tensor = UnpublishedTensor { spec, layout, segment, charge, holder, private: false, expected, tag };
        Ok(Reservation::new(tensor, self.backend()?))
    }

    fn allocate(
        &self,
        params: &p::ReserveParams,
        len: usize,
        wanted: Wanted,
    ) -> Result<(Allocation, Box<dyn SegmentMut>)> {
        let daemon = &self.daemon;
        let is_sealed = wanted == Wanted::Sealed && params.spec.device.is_host();
        let is_for_slab = !is_sealed && self.is_for_slab(params.spec.device, len);
        match wanted {
            Wanted::Block => {
                let fits = !is_for_slab && len <= self.block_bytes_max;
                let Some(block) = (if fits { Allocation::in_block(daemon, len)? } else { None }) else {
                    return self.allocate(params, len, Wanted::Any { to_fill: true });
                };
                self.give_back_later();
                Ok(block)
            }
            Wanted::Any { .. } | Wanted::Sealed if is_for_slab => {
                let to_fill = wanted == Wanted::Any { to_fill: true };
                let found = Allocation::in_slab(daemon, params, len, to_fill)?;
                if daemon.slabs.gives_back_on(params.spec.device) {
                    self.give_back_later();
                }
                Ok(found)
            }
            Wanted::Any { to_fill: true } => Allocation::reserved(daemon, params, |memory| memory.reserve_to_fill(len)),
            Wanted::Any { .. } | Wanted::Sealed => Allocation::reserved(daemon, params, |memory| memory.reserve(len)),
            Wanted::Aliased => Allocation::reserved(daemon, params, |memory| memory.reserve_aliased(len)),
        }
    }

    /// Gives blocks and slabs back that are not used for some seconds, until few are left.
    pub(super) fn give_back_later(&self) {
        let store = self.me.clone();
        self.daemon.slabs.gives_back.start(GIVE_BACK_INTERVAL, move || {
            let Some(store) = store.upgrade() else { return false };
            let session = store.session();
            // The notifications of freed blocks come before the answer. An idle client does not read them.
            // A late answer ends no connection, which would end the leases.
            let _ = session.connection.call_or_forget::<p::Ping>(&p::Empty {}, PING_TIMEOUT);
            let is_left = store.daemon.slabs.give_back(&session);
            store.bound_kept_memory(Instant::now());
            is_left
        });
    }

    fn refuse(&self, spec: &TensorSpec, bytes: usize) -> Result<()> {
        match self.config.refuses(spec.kind, bytes as u64) {
            // The daemon makes the error and counts the refusal. A later daemon, with other rules, may reserve the bytes.
            Some(_) => ReservationGuard::reserve(&self.daemon, &reserve_params(spec, "")).map(drop),
            None => Ok(()),
        }
    }
}

fn reserve_params(spec: &TensorSpec, holder: &str) -> p::ReserveParams {
    p::ReserveParams { spec: Spec::from(spec), holder: holder.to_owned() }
}

impl TensorStore for ClientStore {
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        if let Some(lease) = self.daemon.leases.find_newest(name, holder) {
            return Ok(lease);
        }
        let params = p::GetParams { name: name.to_owned(), holder: holder.name().to_owned() };
        self.daemon.retry(|session| {
            let (descriptor, fds) = session.call_long::<p::Get>(&params, Vec::new())?;
            self.open(session, descriptor, &mut fds.into_iter(), holder)
        })
    }

    fn get_each(&self, names: &[String], holder: &Holder) -> Vec<Result<Lease>> {
        let mut found: Vec<_> = names.iter().map(|name| self.daemon.leases.find_newest(name, holder)).collect();
        let absent = names.iter().zip(&found).filter(|(_, lease)| lease.is_none()).map(|(name, _)| name);
        let params: Vec<_> =
            absent.map(|name| p::GetParams { name: name.clone(), holder: holder.name().to_owned() }).collect();
        let session = self.session();
        let mut answers = session.call_each::<p::Get>(&params, LOOKUPS, |found| usize::from(found.fd)).into_iter();
        let mut next = |name: &String| {
            let answer = answers.next().unwrap_or_else(|| Err(session.replaced()));
            match answer.and_then(|(found, fds)| self.open(&session, found, &mut fds.into_iter(), holder)) {
                Err(_) if session.connection.closed().is_some() => self.get(name, holder),
                // Answers about large groups can fill a message.
                Err(error) if error.kind() == ErrorKind::Unsupported => self.get(name, holder),
                lease => lease,
            }
        };
        names.iter().zip(&mut found).map(|(name, lease)| lease.take().map_or_else(|| next(name), Ok)).collect()
    }

    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        if let Some(lease) = self.daemon.leases.find(id, holder) {
            return Ok(lease);
        }
        let params = p::LeaseParams { id: id.into(), holder: holder.name().to_owned() };
        self.daemon.retry(|session| {
            let (descriptor, fds) = session.call_long::<p::Lease>(&params, Vec::new())?;
            self.open(session, descriptor, &mut fds.into_iter(), holder)
        })
    }

    fn has(&self, id: TensorId) -> bool {
        self.daemon.call::<p::Has>(&p::IdParams { id: id.into() }).is_ok_and(|(there, _)| there.present)
    }

    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_in(spec, holder, Wanted::Any { to_fill: false })
    }

    fn reserve_to_fill(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        let wanted = if spec.device.is_host() { Wanted::Block } else { Wanted::Any { to_fill: true } };
        self.reserve_in(spec, holder, wanted)
    }

    fn reserve_sealed(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_in(spec, holder, Wanted::Sealed)
    }

    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_in(spec, holder, Wanted::Aliased)
    }

    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        let layout = spec.layout().map_err(|error| error.in_field(spec.name.as_str()))?;
        let memory = if spec.device.is_host() { &HeapMemory } else { self.daemon.memories.of(spec.device)? };
        let segment = memory.reserve(layout.size_bytes())?;
        self.reserve_in_private(spec, layout, segment, holder)
    }

    fn remove_version(&self, name: &str, id: Option<TensorId>) -> Result<()> {
        let (params, mut again) = (p::RemoveParams { name: name.to_owned(), id: id.map(Into::into) }, false);
        self.daemon.retry(|session| match session.call::<p::Remove>(&params, Vec::new()) {
            // The first attempt removed it, and its answer was lost.
            Err(error) if again && error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => {
                again = true;
                outcome.map(drop)
            }
        })
    }
}
