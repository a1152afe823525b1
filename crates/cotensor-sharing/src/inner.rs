//! The life of a shared tensor: written by its producer, then published and leased, then freed.

use crate::diagnostics::Entry;
use crate::state::{Content, State, View};
use cotensor_core::{Device, Error, ErrorKind, Layout, Result};
use cotensor_store::log;
use cotensor_store::{Holder, Lease, Store, SystemClock, TensorId, TensorSpec};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What all handles and views of one tensor have in common.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) spec: TensorSpec,
    pub(crate) layout: Layout,
    /// Where it was reserved.
    pub(crate) device: Device,
    pub(crate) residence: Residence,
    /// Lookups that found it and that its store has not counted.
    pub(crate) hits: AtomicU64,
    /// Started with the tensor.
    pub(crate) clock: SystemClock,
    state: RwLock<State>,
    _active: Entry,
}

/// Who keeps a tensor that nobody holds, and who may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// Nobody: it is freed with its last holder.
    Own,
    /// Its store, until memory is wanted.
    Store,
    /// Nobody, and only its producer may hold it: the store's configuration keeps it private.
    Private,
}

/// How the producer writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// Through [`SharedTensor::write`](super::SharedTensor::write) alone.
    InPlace,
    /// By the address, which it may keep.
    ByAddress,
}

/// How an acquire comes about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// From a handle on the tensor.
    Handle,
    /// By its name, which counts as a lookup and as a use.
    Name,
}

impl Inner {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        spec: TensorSpec,
        residence: Residence,
        written: Written,
    ) -> Result<Arc<Self>> {
        let holder = store.holder(&spec.producer);
        let reservation = match (residence, written) {
            (Residence::Private, _) => store.reserve_private(spec.clone(), &holder)?,
            (Residence::Own | Residence::Store, Written::InPlace) => store.reserve(spec.clone(), &holder)?,
            (Residence::Own | Residence::Store, Written::ByAddress) => store.reserve_aliased(spec.clone(), &holder)?,
        };
        let (layout, device) = (reservation.layout().clone(), reservation.device());
        let state = RwLock::new(State::new(reservation));
        let (hits, clock) = (AtomicU64::new(0), SystemClock::default());
        let TensorSpec { name, kind, producer, .. } = &spec;
        let how = if residence == Residence::Private { " privately" } else { "" };
        log::log(|| format!("register {name}: {} bytes of {kind} by {producer}{how}", layout.size_bytes()));
        Ok(Arc::new_cyclic(|tensor| {
            let _active = Entry::new(tensor);
            Self { store, spec, layout, device, residence, hits, clock, state, _active }
        }))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires it once for each of `models`, or for none; where `owner` is given, only if it holds the tensor.
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
        // Kept until the others have theirs: the tensor must not go in between.
        let _first = if others { self.publish(&mut state)? } else { None };
        let id = match &mut state.content {
            Content::Writable { acquires, .. } => {
                *acquires += models.len() as u32;
                if via == Via::Name {
                    self.hits.fetch_add(models.len() as u64, Ordering::Relaxed);
                }
                self.tell_each("acquire", models);
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
        self.tell_each("acquire", models);
        Ok(())
    }

    /// Gives one of `model`'s acquires back.
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
        self.tell_each("release", &[model]);
        self.settle(&mut state)
    }

    /// Gives all of `model`'s acquires back; how many those were, and whether what followed went well.
    pub(crate) fn release_all(&self, model: &str) -> (u32, Result<()>) {
        let mut state = self.write();
        let released = match &mut state.content {
            Content::Writable { acquires, .. } if model == self.spec.producer => std::mem::take(acquires),
            Content::Published { leases, .. } => leases.remove(model).map_or(0, |own| own.len() as u32),
            Content::Writable { .. } | Content::Freed => 0,
        };
        (0..released).for_each(|_| self.tell_each("release", &[model]));
        let settled = if released > 0 { self.settle(&mut state) } else { Ok(()) };
        (released, settled)
    }

    /// Opens a view, which from then on holds the tensor; returns its number.
    pub(crate) fn open_view(&self, name: &str) -> Result<u64> {
        let mut state = self.write();
        let holder = self.store.holder(&format!("view {name}"));
        let lease = match &state.content {
            Content::Writable { .. } => None,
            Content::Published { id, .. } => Some(self.lease(&state, *id, &holder, Via::Handle)?),
            Content::Freed => return Err(self.freed()),
        };
        self.tell_each("view", &[holder.name()]);
        state.views_made += 1;
        let number = state.views_made;
        state.views.insert(number, View { holder, lease });
        Ok(number)
    }

    pub(crate) fn close_view(&self, number: u64) -> Result<()> {
        let mut state = self.write();
        state.views.remove(&number);
        self.settle(&mut state)
    }

    /// Ends it for good unless somebody holds it: handles that are left find it freed.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.write();
        let idle = state.is_idle();
        if idle {
            state.content = Content::Freed;
        }
        idle
    }

    /// A lease of exactly the version that was published here, whatever its name leads to by now.
    fn lease(&self, state: &State, id: TensorId, holder: &Holder, via: Via) -> Result<Lease> {
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

    /// Publishes it unless it is already: every acquire and every view gets its lease. The lease returned is one more.
    fn publish(&self, state: &mut State) -> Result<Option<Lease>> {
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

    /// After somebody let go: once nobody holds it, its store keeps it or its memory goes.
    fn settle(&self, state: &mut State) -> Result<()> {
        if !state.is_idle() {
            return Ok(());
        }
        match self.residence {
            Residence::Store => self.publish(state).map(drop),
            Residence::Own | Residence::Private => {
                // A published one is told of by its store.
                if let Content::Writable { .. } = state.content {
                    log::log(|| format!("free {}: {} bytes", self.spec.name, self.layout.size_bytes()));
                }
                state.content = Content::Freed;
                Ok(())
            }
        }
    }

    fn tell_each(&self, event: &str, holders: &[&str]) {
        for holder in holders {
            log::log(|| format!("{event} {}: {holder}", self.spec.name));
        }
    }

    pub(crate) fn freed(&self) -> Error {
        Error::not_found(format!("{} was freed", self.spec.name))
    }

    fn not_held(&self, model: &str) -> Error {
        Error::new(ErrorKind::Conflict, format!("{} is not held by {model:?}", self.spec.name))
    }

    fn private(&self) -> Error {
        let TensorSpec { name, kind, producer, .. } = &self.spec;
        let message = format!("{name} ({kind}) is private to {producer:?}: the configuration does not share it");
        Error::new(ErrorKind::Refused, message)
    }
}
