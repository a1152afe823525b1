//! The tensors that this process leases: one mapping per segment, one record per tensor, one lease of the daemon per
//! record.

use super::connection::DaemonConnection;
use super::memories::Memories;
use super::session::Session;
use crate::protocol::{self as p, Descriptor, Id, IndexSlot};
use cotensor_core::sync::{lock, read, write};
use cotensor_core::{Error, ErrorKind, Layout, MemoryKind, Result, Segment};
use cotensor_memory::SharedIndexReader;
use cotensor_memory::process::fd_limit_error;
use cotensor_store::backend::{Budget, Record, RecordParts, StoreBackend};
use cotensor_store::{Holder, Key, Lease, TensorId, TensorSpec};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

pub(super) struct LeaseTable {
    connection: Arc<DaemonConnection>,
    memories: Arc<Memories>,
    tensors: Mutex<Tensors>,
    /// Segments by the session's generation and its segment number.
    segments: Mutex<HashMap<(u64, u64), Weak<dyn Segment>>>,
    newest: RwLock<Newest>,
    budget: Arc<Budget>,
    private: AtomicU64,
}

/// Leased tensors. Invariant O1: the session of `generation` leases every tensor in `entries`, or renews its lease. The
/// generation changes under this lock, together with the list of leases to renew.
#[derive(Default)]
struct Tensors {
    generation: u64,
    entries: HashMap<TensorId, Entry>,
}

/// Names whose newest version this process leases, as long as the index confirms that.
#[derive(Default)]
struct Newest {
    index: Option<Arc<SharedIndexReader>>,
    names: HashMap<Box<str>, (IndexSlot, Weak<Record>)>,
}

/// A tensor that the daemon has leased to this process, with its memory.
pub(super) struct NewLease {
    pub(super) id: TensorId,
    pub(super) index: Option<IndexSlot>,
    pub(super) spec: TensorSpec,
    pub(super) layout: Layout,
    pub(super) segment: Arc<dyn Segment>,
    /// The computation of which it is a result.
    pub(super) key: Option<Key>,
}

struct Entry {
    record: Arc<Record>,
    /// The holder of the daemon's lease.
    holder: Arc<str>,
    /// Keeps the store, and with it the daemon's lease, until the last lease of this process is dropped.
    _backend: Arc<dyn StoreBackend>,
}

impl LeaseTable {
    pub(super) fn new(connection: Arc<DaemonConnection>, memories: Arc<Memories>) -> Self {
        let newest = RwLock::new(Newest { index: connection.session().index.clone(), names: HashMap::new() });
        Self {
            connection,
            memories,
            newest,
            tensors: Mutex::default(),
            segments: Mutex::default(),
            budget: Budget::new(u64::MAX),
            private: AtomicU64::new(1),
        }
    }

    /// A version number for a private tensor.
    pub(super) fn next_private(&self) -> u64 {
        self.private.fetch_add(1, Ordering::Relaxed)
    }

    /// A lease of a tensor in the table.
    pub(super) fn find(&self, id: TensorId, holder: &Holder) -> Option<Lease> {
        lock(&self.tensors).entries.get(&id)?.record.lease_on_lookup(holder)
    }

    /// A lease of the newest version of a name, if it is in the table and the index confirms it. Makes no call.
    pub(super) fn find_newest(&self, name: &str, holder: &Holder) -> Option<Lease> {
        let (record, ..) = self.newest_of(name)?;
        record.lease_on_lookup(holder)
    }

    /// The index and the slot in which a change of `name` shows, while the index confirms that `id` is its newest version.
    pub(super) fn slot_of(&self, name: &str, id: TensorId) -> Option<(Arc<SharedIndexReader>, IndexSlot)> {
        let (record, index, slot) = self.newest_of(name)?;
        (record.id() == id).then_some((index, slot))
    }

    /// The record of the newest version of a name, if it is in the table and the index confirms it. The caller drops the record without a
    /// lock: the last drop of one takes the locks of this table.
    fn newest_of(&self, name: &str) -> Option<(Arc<Record>, Arc<SharedIndexReader>, IndexSlot)> {
        let newest = read(&self.newest);
        let (slot, record) = newest.names.get(name)?;
        let index = newest.index.as_ref()?;
        if index.get(slot.slot) != Some(slot.generation) {
            return None;
        }
        Some((record.upgrade()?, Arc::clone(index), *slot))
    }

    /// Forgets the newest versions: the next lookup of each name is a call.
    pub(super) fn forget_names(&self) {
        let before = std::mem::take(&mut *write(&self.newest));
        drop(before);
    }

    fn set_newest(&self, session: &Session, name: &str, slot: IndexSlot, record: &Arc<Record>) {
        let mut newest = write(&self.newest);
        let same = |index: &Arc<SharedIndexReader>| session.index.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, index));
        if newest.index.as_ref().is_some_and(same) {
            newest.names.insert(name.into(), (slot, Arc::downgrade(record)));
        }
    }

    /// Closes the connection. Answers that are not entered yet are refused. Without leases, the session's lock is released before: the daemon
    /// does not keep the session then.
    pub(super) fn close(&self) {
        let tensors = lock(&self.tensors);
        if tensors.entries.is_empty() {
            self.connection.session().open.end();
        }
        self.connection.close();
        drop(tensors);
        self.forget_names();
    }

    /// Starts the session of `generation`, and returns the leases to renew in it. Answers of earlier sessions are
    /// refused.
    pub(super) fn begin(&self, generation: u64) -> (Vec<(TensorId, Arc<str>)>, Vec<p::Resumed>) {
        let mut tensors = lock(&self.tensors);
        tensors.generation = generation;
        let resumed = |(id, entry): (&TensorId, &Entry)| {
            let (name, holder) = (entry.record.name().to_owned(), entry.holder.to_string());
            ((*id, Arc::clone(&entry.holder)), p::Resumed { name, version: id.version, holder })
        };
        tensors.entries.iter().map(resumed).unzip()
    }

    /// Makes `session` the current one, which has renewed the leases `held` as far as `resumed` says. Leases that were
    /// dropped meanwhile are released.
    pub(super) fn renew(&self, session: &Arc<Session>, held: &[(TensorId, Arc<str>)], resumed: &[Option<Id>]) {
        let mut tensors = lock(&self.tensors);
        let (mut dropped, mut lost) = (Vec::new(), Vec::new());
        for (index, (id, holder)) in held.iter().enumerate() {
            let (id, holder) = (*id, holder.clone());
            let renewed = resumed.get(index).copied().flatten().map(TensorId::from) == Some(id);
            match tensors.entries.get(&id) {
                // The daemon has lost the tensor. This process keeps its leases and the memory that it has mapped.
                Some(_) if !renewed => lost.extend(tensors.entries.remove(&id)),
                Some(_) => {}
                None if renewed => dropped.push((id, holder)),
                None => {}
            }
        }
        *write(&self.newest) = Newest { index: session.index.clone(), names: HashMap::new() };
        // Under the lock: from now on, leases are released in the new session.
        self.connection.replace(Arc::clone(session));
        if self.connection.is_closed() && tensors.entries.is_empty() {
            session.open.end();
        }
        drop(tensors);
        drop(lost);
        for (id, holder) in dropped {
            release(session, id, &holder);
        }
    }

    /// Maps a tensor that the daemon has leased to `holder`.
    pub(super) fn open(
        &self,
        session: &Session,
        descriptor: Descriptor,
        fds: &mut std::vec::IntoIter<OwnedFd>,
        holder: &Holder,
        backend: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let fd = if descriptor.fd { fds.next() } else { None };
        match self.segment(session, &descriptor, fd) {
            Ok(whole) => self.open_in(session, &descriptor, whole.for_tensor(&whole), holder, backend),
            Err(error) => {
                release(session, descriptor.id.into(), holder.name());
                Err(error)
            }
        }
    }

    /// As [`open`](Self::open), each of `descriptors`. An error releases the leases of those that are left.
    pub(super) fn open_each(
        &self,
        session: &Session,
        descriptors: Vec<Descriptor>,
        fds: Vec<OwnedFd>,
        holder: &Holder,
        backend: Weak<dyn StoreBackend>,
    ) -> Result<Vec<Lease>> {
        let (mut descriptors, mut fds) = (descriptors.into_iter(), fds.into_iter());
        let open = |descriptor| self.open(session, descriptor, &mut fds, holder, backend.clone());
        let leases = descriptors.by_ref().map(open).collect();
        release_all(session, descriptors.map(|left| (TensorId::from(left.id), holder.name())));
        leases
    }

    /// As [`open`](Self::open), for a tensor in a segment that this process has.
    pub(super) fn open_in(
        &self,
        session: &Session,
        descriptor: &Descriptor,
        segment: Arc<dyn Segment>,
        holder: &Holder,
        backend: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let (id, index) = (descriptor.id.into(), descriptor.index);
        match descriptor.spec.to_domain().and_then(|spec| Ok((spec, descriptor.layout()?))) {
            Ok((spec, layout)) => {
                self.enter(session, NewLease { id, index, spec, layout, segment, key: None }, holder, backend)
            }
            Err(error) => {
                release(session, id, holder.name());
                Err(error)
            }
        }
    }

    /// Enters a tensor that the daemon has leased to `holder`.
    pub(super) fn enter(
        &self,
        session: &Session,
        lease: NewLease,
        holder: &Holder,
        backend: Weak<dyn StoreBackend>,
    ) -> Result<Lease> {
        let NewLease { id, index, spec, layout, segment, key } = lease;
        let make = || {
            let charge = self.budget.take_unchecked(0);
            let (charge, created) = (charge.into(), Duration::ZERO);
            let parts = RecordParts { id, spec, layout, segment, charge, retained: false, private: None, key, created };
            let strong = backend.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
            Ok((Record::new(parts, backend), strong))
        };
        let mut tensors = lock(&self.tensors);
        if tensors.generation != session.generation || self.connection.is_closed() {
            // That session has ended, and this lease with it. A closed client may have released its lock.
            return Err(session.replaced());
        }
        let known =
            tensors.entries.get(&id).and_then(|entry| Some((entry.record.lease_on_lookup(holder)?, &entry.record)));
        if let Some((lease, record)) = known {
            if let Some(slot) = index {
                self.set_newest(session, lease.name(), slot, record);
            }
            drop(tensors);
            // The record has a lease of the daemon already.
            release(session, id, holder.name());
            return Ok(lease);
        }
        let entered = make().and_then(|(record, backend): (Arc<Record>, Arc<dyn StoreBackend>)| {
            let lease = record
                .lease_on_lookup(holder)
                .ok_or_else(|| Error::new(ErrorKind::Conflict, "a new tensor is closed"))?;
            if let Some(slot) = index {
                self.set_newest(session, lease.name(), slot, &record);
            }
            let before =
                tensors.entries.insert(id, Entry { record, holder: Arc::from(holder.name()), _backend: backend });
            Ok((lease, before))
        });
        drop(tensors);
        match entered {
            Ok((lease, before)) => {
                // A closed record that `forget` has not removed yet. Its lease is released here, as `forget` finds the
                // new record.
                if let Some(before) = before.filter(|before| before.record.segment().end_use()) {
                    release(session, id, &before.holder);
                }
                Ok(lease)
            }
            Err(error) => {
                release(session, id, holder.name());
                Err(error)
            }
        }
    }

    /// Removes a record whose last lease was dropped. One that work of this process may still read stays, with the daemon's lease: its memory
    /// must not be used again.
    pub(super) fn forget(&self, record: &Arc<Record>) {
        if !record.segment().end_use() {
            return;
        }
        let mut tensors = lock(&self.tensors);
        // The tensor may have a new record since this one was closed.
        let removed = match tensors.entries.get(&record.id()) {
            Some(entry) if Arc::ptr_eq(&entry.record, record) => tensors.entries.remove(&record.id()),
            _ => None,
        };
        // Under the lock: the session that has the lease, by O1.
        let session = self.connection.session();
        if self.connection.is_closed() && tensors.entries.is_empty() {
            session.open.end();
        }
        drop(tensors);
        if let Some(entry) = removed {
            let mut newest = write(&self.newest);
            let name = record.name();
            if newest.names.get(name).is_some_and(|(_, known)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(record))) {
                newest.names.remove(name);
            }
            drop(newest);
            release(&session, record.id(), &entry.holder);
        }
    }

    fn segment(&self, session: &Session, descriptor: &Descriptor, fd: Option<OwnedFd>) -> Result<Arc<dyn Segment>> {
        let info = descriptor.segment;
        let memory = self.memories.of(info.device).map_err(|error| error.in_field(descriptor.spec.name.as_str()))?;
        let mut segments = lock(&self.segments);
        if fd.is_none()
            && let Some(segment) = segments.get(&(session.generation, info.id)).and_then(Weak::upgrade)
        {
            return Ok(segment);
        }
        let fd = match fd {
            Some(fd) => fd,
            None => {
                let (_, fds) = session.call::<p::SegmentFd>(&p::SegmentParams { segment: info.id }, Vec::new())?;
                // The kernel drops descriptors beyond this process's limit.
                fds.into_iter().next().ok_or_else(fd_limit_error)?
            }
        };
        let len = usize::try_from(info.bytes).map_err(|_| Error::unsupported("a segment beyond this process"))?;
        let kind = if info.slab { MemoryKind::Slab } else { memory.kind() };
        let segment = memory.import(fd, len, kind)?;
        segments.retain(|_, segment| segment.strong_count() > 0);
        segments.insert((session.generation, info.id), Arc::downgrade(&segment));
        Ok(segment)
    }
}

fn release(session: &Session, id: TensorId, holder: &str) {
    release_all(session, std::iter::once((id, holder)));
}

fn release_all<'h>(session: &Session, leases: impl Iterator<Item = (TensorId, &'h str)>) {
    let leases = leases.map(|(id, holder)| p::LeaseParams { id: id.into(), holder: holder.to_owned() });
    let leases: Vec<_> = leases.collect();
    if !leases.is_empty() {
        session.notify::<p::Release>(&p::ReleaseParams { leases });
    }
}
