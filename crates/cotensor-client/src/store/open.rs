//! The tensors that this process leases: one mapping for each segment, one record for each tensor, one lease of the
//! daemon's for each record.

use super::link::{Link, Live};
use super::lock;
use crate::protocol::{self as p, Descriptor, Id, IndexSlot};
use cotensor_core::{Error, ErrorKind, Layout, Result, Segment};
use cotensor_memory::process::fd_limit_error;
use cotensor_memory::{Guarantee, SealedMemfd, SharedIndexReader};
use cotensor_store::backend::{Budget, Record, RecordParts, StoreBackend};
use cotensor_store::{Holder, Key, Lease, TensorId, TensorSpec};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

pub(super) struct Opened {
    link: Arc<Link>,
    tensors: Mutex<Tensors>,
    /// Segments by connection and the session's numbers.
    segments: Mutex<HashMap<(u64, u64), Weak<SealedMemfd>>>,
    newest: RwLock<Newest>,
    budget: Arc<Budget>,
    private: AtomicU64,
}

/// What is open. Invariant O1: whatever is in `open` is leased by the session of `generation`, or is among what that
/// session takes up: the generation changes under this lock, together with the list of what there is to take up.
#[derive(Default)]
struct Tensors {
    generation: u64,
    open: HashMap<TensorId, Open>,
}

/// Names that this process holds the newest version of, as long as the index says so.
#[derive(Default)]
struct Newest {
    index: Option<Arc<SharedIndexReader>>,
    names: HashMap<Box<str>, (IndexSlot, Weak<Record>)>,
}

/// A tensor that the daemon just leased to this process, and the memory that it lies in.
pub(super) struct Opening {
    pub(super) id: TensorId,
    pub(super) index: Option<IndexSlot>,
    pub(super) spec: TensorSpec,
    pub(super) layout: Layout,
    pub(super) segment: Arc<dyn Segment>,
    /// The computation that it is a result of.
    pub(super) key: Option<Key>,
}

struct Open {
    record: Arc<Record>,
    /// Under whose name the daemon leases it to this process.
    holder: Arc<str>,
    /// The store lives, and with it the daemon's lease, until the last lease here goes and this with it.
    _home: Arc<dyn StoreBackend>,
}

impl Opened {
    pub(super) fn new(link: Arc<Link>) -> Self {
        let newest = RwLock::new(Newest { index: link.live().index.clone(), names: HashMap::new() });
        Self {
            link,
            newest,
            tensors: Mutex::default(),
            segments: Mutex::default(),
            budget: Budget::new(u64::MAX),
            private: AtomicU64::new(1),
        }
    }

    /// A version for a tensor of this process alone.
    pub(super) fn next_private(&self) -> u64 {
        self.private.fetch_add(1, Ordering::Relaxed)
    }

    /// For whom there are leases.
    pub(super) fn holders(&self) -> HashSet<u32> {
        let tensors = lock(&self.tensors);
        tensors.open.values().flat_map(|open| open.record.holders()).map(|(holder, _)| holder).collect()
    }

    /// A lease of a tensor that is open already.
    pub(super) fn find(&self, id: TensorId, holder: &Holder) -> Option<Lease> {
        lock(&self.tensors).open.get(&id)?.record.find(holder)
    }

    /// A lease of the newest version of a name, if this process has it and the index says that it is: nobody is asked.
    pub(super) fn find_newest(&self, name: &str, holder: &Holder) -> Option<Lease> {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        let (place, record) = newest.names.get(name)?;
        let valid = newest.index.as_ref()?.get(place.slot) == Some(place.generation);
        valid.then(|| record.upgrade()?.find(holder)).flatten()
    }

    /// From now on the daemon is asked for every name.
    pub(super) fn forget_names(&self) {
        let before = std::mem::take(&mut *self.newest.write().unwrap_or_else(PoisonError::into_inner));
        drop(before);
    }

    fn remember_newest(&self, live: &Live, name: &str, place: IndexSlot, record: &Arc<Record>) {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        let same = |index: &Arc<SharedIndexReader>| live.index.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, index));
        if newest.index.as_ref().is_some_and(same) {
            newest.names.insert(name.into(), (place, Arc::downgrade(record)));
        }
    }

    /// Begins the session of `generation`: what it is to take up, and no answer of a former one is taken any more.
    pub(super) fn gather(&self, generation: u64) -> (Vec<(TensorId, Arc<str>)>, Vec<p::Resumed>) {
        let mut tensors = lock(&self.tensors);
        tensors.generation = generation;
        let resumed = |(id, open): (&TensorId, &Open)| {
            let (name, holder) = (open.record.name().to_owned(), open.holder.to_string());
            ((*id, Arc::clone(&open.holder)), p::Resumed { name, version: id.version, holder })
        };
        tensors.open.iter().map(resumed).unzip()
    }

    /// The session of `live` has taken up what it could of `held`. What was given back meanwhile, it gives back.
    pub(super) fn renew(&self, live: &Arc<Live>, held: &[(TensorId, Arc<str>)], resumed: &[Option<Id>]) {
        let mut tensors = lock(&self.tensors);
        let (mut given_back, mut lost) = (Vec::new(), Vec::new());
        for (index, (id, holder)) in held.iter().enumerate() {
            let (id, holder) = (*id, holder.clone());
            let taken_up = resumed.get(index).copied().flatten().map(TensorId::from) == Some(id);
            match tensors.open.get(&id) {
                // The daemon knows nothing of it any more. Its leases here go on, on the memory that this process has.
                Some(_) if !taken_up => lost.extend(tensors.open.remove(&id)),
                Some(_) => {}
                None if taken_up => given_back.push((id, holder)),
                None => {}
            }
        }
        *self.newest.write().unwrap_or_else(PoisonError::into_inner) =
            Newest { index: live.index.clone(), names: HashMap::new() };
        // Under the lock: whoever gives something back from now on tells the new session.
        self.link.replace(Arc::clone(live));
        drop(tensors);
        drop(lost);
        for id in given_back {
            give_back(live, id.0, &id.1);
        }
    }

    /// A lease of what the daemon just leased to this process under `holder`'s name.
    pub(super) fn open(
        &self,
        live: &Live,
        descriptor: Descriptor,
        fds: &mut std::vec::IntoIter<OwnedFd>,
        holder: &Holder,
        home: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let fd = if descriptor.fd { fds.next() } else { None };
        match self.segment(live, &descriptor, fd) {
            Ok(segment) => self.part(live, &descriptor, segment, holder, home),
            Err(error) => {
                give_back(live, descriptor.id.into(), holder.name());
                Err(error)
            }
        }
    }

    /// A lease of a tensor in a segment that this process has.
    pub(super) fn part(
        &self,
        live: &Live,
        descriptor: &Descriptor,
        segment: Arc<dyn Segment>,
        holder: &Holder,
        home: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let (id, index) = (descriptor.id.into(), descriptor.index);
        match descriptor.spec.to_domain().and_then(|spec| Ok((spec, descriptor.layout()?))) {
            Ok((spec, layout)) => {
                self.enter(live, Opening { id, index, spec, layout, segment, key: None }, holder, home)
            }
            Err(error) => {
                give_back(live, id, holder.name());
                Err(error)
            }
        }
    }

    /// A lease of what the daemon just leased to this process under `holder`'s name.
    pub(super) fn enter(
        &self,
        live: &Live,
        opening: Opening,
        holder: &Holder,
        home: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let Opening { id, index, spec, layout, segment, key } = opening;
        let make = || {
            let charge = self.budget.take(0).ok_or_else(|| Error::new(ErrorKind::OverBudget, "no memory"))?;
            let (charge, created) = (charge.into(), Duration::ZERO);
            let parts = RecordParts { id, spec, layout, segment, charge, retained: false, private: None, key, created };
            let strong = home.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
            Ok((Record::new(parts, home), strong))
        };
        let mut tensors = lock(&self.tensors);
        if tensors.generation != live.generation {
            // That session is over, and this lease with it.
            return Err(live.outlived());
        }
        let known = tensors.open.get(&id).and_then(|open| Some((open.record.find(holder)?, &open.record)));
        if let Some((lease, record)) = known {
            if let Some(place) = index {
                self.remember_newest(live, lease.name(), place, record);
            }
            drop(tensors);
            // The record has a lease of the daemon's already.
            give_back(live, id, holder.name());
            return Ok(lease);
        }
        let entered = make().and_then(|(record, home): (Arc<Record>, Arc<dyn StoreBackend>)| {
            let lease = record.find(holder).ok_or_else(|| Error::new(ErrorKind::Conflict, "a new tensor is closed"))?;
            if let Some(place) = index {
                self.remember_newest(live, lease.name(), place, &record);
            }
            let before = tensors.open.insert(id, Open { record, holder: Arc::from(holder.name()), _home: home });
            Ok((lease, before))
        });
        drop(tensors);
        match entered {
            Ok((lease, before)) => {
                // One that is closed and not forgotten yet: its lease of the daemon's goes here, as `forget` finds another.
                if let Some(before) = before {
                    give_back(live, id, &before.holder);
                }
                Ok(lease)
            }
            Err(error) => {
                give_back(live, id, holder.name());
                Err(error)
            }
        }
    }

    /// The last lease of a record is gone and it is closed.
    pub(super) fn forget(&self, record: &Arc<Record>) {
        let mut tensors = lock(&self.tensors);
        // The tensor may have been opened anew since it was closed.
        let gone = match tensors.open.get(&record.id()) {
            Some(open) if Arc::ptr_eq(&open.record, record) => tensors.open.remove(&record.id()),
            _ => None,
        };
        // Under the lock: the session that has the lease, by O1.
        let live = self.link.live();
        drop(tensors);
        if let Some(open) = gone {
            let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
            let name = record.name();
            if newest.names.get(name).is_some_and(|(_, known)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(record))) {
                newest.names.remove(name);
            }
            drop(newest);
            give_back(&live, record.id(), &open.holder);
        }
    }

    fn segment(&self, live: &Live, descriptor: &Descriptor, fd: Option<OwnedFd>) -> Result<Arc<dyn Segment>> {
        let info = descriptor.segment;
        if !info.device.is_host() {
            let message = format!("it is in the memory of {}, which this client cannot map", info.device);
            return Err(Error::unsupported(message).in_field(descriptor.spec.name.as_str()));
        }
        let mut segments = lock(&self.segments);
        if fd.is_none()
            && let Some(segment) = segments.get(&(live.generation, info.id)).and_then(Weak::upgrade)
        {
            return Ok(segment);
        }
        let fd = match fd {
            Some(fd) => fd,
            None => {
                let (_, fds) = live.call::<p::SegmentFd>(&p::SegmentParams { segment: info.id }, Vec::new())?;
                // The connection drops what this process may not open.
                fds.into_iter().next().ok_or_else(fd_limit_error)?
            }
        };
        let len = usize::try_from(info.bytes).map_err(|_| Error::unsupported("a segment beyond this process"))?;
        let guarantee = if info.slab { Guarantee::ProducerOnly } else { Guarantee::Immutable };
        let segment = SealedMemfd::open_once(fd, len, guarantee)?;
        segments.retain(|_, segment| segment.strong_count() > 0);
        segments.insert((live.generation, info.id), Arc::downgrade(&segment));
        Ok(segment)
    }
}

fn give_back(live: &Live, id: TensorId, holder: &str) {
    let leases = vec![p::LeaseParams { id: id.into(), holder: holder.to_owned() }];
    live.tell::<p::Release>(&p::ReleaseParams { leases });
}
