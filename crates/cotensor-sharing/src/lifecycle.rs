//! The lifecycle of a shared tensor: written by its producer, then published and leased, then freed.

use crate::active::{ActiveList, Registration};
use crate::state::{Content, TensorState, ViewHold};
use cotensor_core::sync::{read, write};
use cotensor_core::{Device, Error, ErrorKind, Layout, Result};
use cotensor_store::log;
use cotensor_store::{Holder, Lease, Store, SystemClock, TensorId, TensorSpec};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// All shared tensors of this process that have a handle or a view.
static ACTIVE: ActiveList<TensorCell> = ActiveList::new();

/// The state that all handles and views of one tensor share.
pub(crate) struct TensorCell {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) spec: TensorSpec,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
    /// The device that the storage type named.
    pub(crate) wanted: Device,
    pub(crate) residence: Residence,
    /// Lookups that found it and that its store has not counted.
    pub(crate) hits: AtomicU64,
    /// Starts when the tensor is created.
    pub(crate) clock: SystemClock,
    pub(crate) state: RwLock<TensorState>,
    pub(crate) _registration: Registration<TensorCell>,
}

/// Determines what happens to a tensor without holders, and which models may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// The tensor is freed with its last holder.
    Own,
    /// The store keeps the tensor until it needs the memory.
    Store,
    /// The store's configuration does not share the tensor: only its producer may hold it, and its last release frees
    /// it.
    Private,
}

/// How the producer writes a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// Only through [`SharedTensor::write`](super::SharedTensor::write).
    InPlace,
    /// Through an address that the producer may keep after publishing.
    ByAddress,
}

/// How a model reached the tensor that it acquires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// Through a handle.
    Handle,
    /// By name, which counts as a lookup and as a use.
    Name,
}

impl TensorCell {
    /// The live tensors, in the order of their creation.
    pub(crate) fn active() -> Vec<Arc<Self>> {
        ACTIVE.all()
    }

    /// Adds a tensor to the live ones.
    pub(crate) fn register(tensor: &Weak<Self>) -> Registration<Self> {
        ACTIVE.add(tensor)
    }

    pub(crate) fn new(
        store: Arc<dyn Store>,
        spec: TensorSpec,
        wanted: Device,
        residence: Residence,
        mode: WriteMode,
    ) -> Result<Arc<Self>> {
        let holder = store.holder(&spec.producer);
        let reservation = match (residence, mode) {
            (Residence::Private, _) => store.reserve_private(spec.clone(), &holder)?,
            (Residence::Own | Residence::Store, WriteMode::InPlace) => store.reserve(spec.clone(), &holder)?,
            (Residence::Own | Residence::Store, WriteMode::ByAddress) => {
                store.reserve_aliased(spec.clone(), &holder)?
            }
        };
        let (layout, device) = (reservation.layout().clone(), reservation.device());
        let state = RwLock::new(TensorState::new(reservation));
        let (hits, clock) = (AtomicU64::new(0), SystemClock::default());
        let TensorSpec { name, kind, producer, .. } = &spec;
        let how = if residence == Residence::Private { " privately" } else { "" };
        log::log(|| {
            let skipped = wanted.browser_only().filter(|_| wanted != device);
            let skipped = skipped.map_or_else(String::new, |reason| format!(", on {device}: {wanted} is {reason}"));
            format!("register {name}: {} bytes of {kind} by {producer}{how}{skipped}", layout.size_bytes())
        });
        Ok(Arc::new_cyclic(|tensor| {
            let _registration = Self::register(tensor);
            Self { store, spec, layout, device, wanted, residence, hits, clock, state, _registration }
        }))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, TensorState> {
        read(&self.state)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, TensorState> {
        write(&self.state)
    }

    /// Acquires the tensor once for each of `models`, or fails for all. With `owner`, fails unless `owner` holds the
    /// tensor.
    pub(crate) fn acquire(&self, models: &[&str], owner: Option<&str>, via: Via) -> Result<()> {
        let mut state = self.write();
        if let Some(owner) = owner
            && !state.holds(owner, &self.spec.producer)
        {
            return Err(self.not_held(owner));
        }
        let others = models.iter().any(|model| *model != self.spec.producer);
        if others && self.residence == Residence::Private {
            return Err(self.private());
        }
        // Holds the tensor until the others have their leases: it must not be evicted in between.
        let _first = if others { self.publish(&mut state)? } else { None };
        let id = match &mut state.content {
            Content::Writable { acquires, .. } => {
                *acquires += models.len() as u32;
                if via == Via::Name {
                    self.hits.fetch_add(models.len() as u64, Ordering::Relaxed);
                }
                self.log_each("acquire", models);
                return Ok(());
            }
            Content::Published { id, .. } => *id,
            Content::Freed => return Err(self.freed()),
        };
        let taken: Result<Vec<Lease>> =
            models.iter().map(|model| self.lease(&state, id, &self.store.holder(model), via)).collect();
        let taken = taken.inspect_err(|error| {
            if error.kind() == ErrorKind::NotFound && state.is_idle() {
                state.content = Content::Freed;
            }
        })?;
        if let Content::Published { leases, .. } = &mut state.content {
            for (model, lease) in models.iter().zip(taken) {
                leases.entry((*model).to_owned()).or_default().push(lease);
            }
        }
        self.log_each("acquire", models);
        Ok(())
    }

    /// Releases one acquire of `model`.
    pub(crate) fn release(&self, model: &str) -> Result<()> {
        let mut state = self.write();
        match &mut state.content {
            Content::Writable { acquires, .. } if model == self.spec.producer && *acquires > 0 => *acquires -= 1,
            Content::Published { leases, .. } => {
                let own = leases.get_mut(model).ok_or_else(|| self.not_held(model))?;
                own.pop();
                if own.is_empty() {
                    leases.remove(model);
                }
            }
            Content::Writable { .. } | Content::Freed => return Err(self.not_held(model)),
        }
        self.log_each("release", &[model]);
        self.settle(&mut state)
    }

    /// Releases all acquires of `model`. Returns their number, and the outcome of publishing or freeing the tensor.
    pub(crate) fn release_all(&self, model: &str) -> (u32, Result<()>) {
        let mut state = self.write();
        let released = match &mut state.content {
            Content::Writable { acquires, .. } if model == self.spec.producer => std::mem::take(acquires),
            Content::Published { leases, .. } => leases.remove(model).map_or(0, |own| own.len() as u32),
            Content::Writable { .. } | Content::Freed => 0,
        };
        (0..released).for_each(|_| self.log_each("release", &[model]));
        let settled = if released > 0 { self.settle(&mut state) } else { Ok(()) };
        (released, settled)
    }

    /// Opens a view, which holds the tensor. Returns the view's number.
    pub(crate) fn open_view(&self, name: &str) -> Result<u64> {
        let mut state = self.write();
        let holder = self.store.holder(&format!("view {name}"));
        let lease = match &state.content {
            Content::Writable { .. } => None,
            Content::Published { id, .. } => Some(self.lease(&state, *id, &holder, Via::Handle)?),
            Content::Freed => return Err(self.freed()),
        };
        self.log_each("view", &[holder.name()]);
        state.views_made += 1;
        let number = state.views_made;
        state.views.insert(number, ViewHold { holder, lease });
        Ok(number)
    }

    pub(crate) fn close_view(&self, number: u64) -> Result<()> {
        let mut state = self.write();
        state.views.remove(&number);
        self.settle(&mut state)
    }

    /// Frees the tensor unless it has a holder. Returns whether it was freed.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.write();
        let idle = state.is_idle();
        if idle {
            state.content = Content::Freed;
        }
        idle
    }

    /// A lease of the version that this tensor published, even if the name has a newer version.
    fn lease(&self, state: &TensorState, id: TensorId, holder: &Holder, via: Via) -> Result<Lease> {
        if via == Via::Name
            && let Ok(lease) = self.store.get(&self.spec.name, holder)
            && lease.id() == id
        {
            return Ok(lease);
        }
        match state.any_lease() {
            Some(lease) => lease.lease_for(holder),
            None => self.store.lease(id, holder),
        }
    }

    /// Publishes the tensor unless it is published. Every acquire and every view gets a lease; the returned lease is
    /// one more.
    fn publish(&self, state: &mut TensorState) -> Result<Option<Lease>> {
        if !matches!(state.content, Content::Writable { .. }) {
            return Ok(None);
        }
        let content = std::mem::replace(&mut state.content, Content::Freed);
        let Content::Writable { reservation, acquires } = content else { return Ok(None) };
        let lease = reservation.publish()?;
        let mut leases = BTreeMap::new();
        if acquires > 0 {
            let own: Result<Vec<Lease>> = (0..acquires).map(|_| lease.try_clone()).collect();
            leases.insert(self.spec.producer.clone(), own?);
        }
        for view in state.views.values_mut() {
            view.lease = Some(lease.lease_for(&view.holder)?);
        }
        log::log(|| format!("publish {}: version {}", self.spec.name, lease.id().version));
        state.content = Content::Published { id: lease.id(), leases };
        Ok(Some(lease))
    }

    /// Publishes or frees a tensor that lost its last holder.
    fn settle(&self, state: &mut TensorState) -> Result<()> {
        if !state.is_idle() {
            return Ok(());
        }
        match self.residence {
            Residence::Store => self.publish(state).map(drop),
            Residence::Own | Residence::Private => {
                // The store logs the end of a published tensor.
                if let Content::Writable { .. } = state.content {
                    log::log(|| format!("free {}: {} bytes", self.spec.name, self.layout.size_bytes()));
                }
                state.content = Content::Freed;
                Ok(())
            }
        }
    }

    fn log_each(&self, event: &str, holders: &[&str]) {
        for holder in holders {
            log::log(|| format!("{event} {}: {holder}", self.spec.name));
        }
    }

    pub(crate) fn freed(&self) -> Error {
        Error::not_found(format!("{} was freed; create or register it again", self.spec.name))
    }

    fn not_held(&self, model: &str) -> Error {
        Error::new(ErrorKind::Conflict, format!("{} is not held by {model:?}", self.spec.name))
    }

    pub(crate) fn private(&self) -> Error {
        let TensorSpec { name, kind, producer, .. } = &self.spec;
        let message = format!("{name} ({kind}) is private to {producer:?}: the configuration does not share it");
        Error::new(ErrorKind::Refused, message)
    }
}
