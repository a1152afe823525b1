//! The tensors that this process leases: one mapping for each segment, one record for each tensor, one lease of the
//! daemon's for each record.

use super::{Link, lock};
use crate::protocol::{self as p, Descriptor};
use cotensor_core::{Error, ErrorKind, Result, Segment};
use cotensor_memory::{Guarantee, SealedMemfd};
use cotensor_store::home::{Budget, Home, Record, RecordParts};
use cotensor_store::{Holder, Key, Lease, TensorId};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub(super) struct Opened {
    link: Arc<Link>,
    tensors: Mutex<HashMap<TensorId, Open>>,
    /// Segments by the session's numbers.
    segments: Mutex<HashMap<u64, Weak<SealedMemfd>>>,
    budget: Arc<Budget>,
    private: AtomicU64,
}

struct Open {
    record: Arc<Record>,
    /// Under whose name the daemon leases it to this process.
    holder: Arc<str>,
}

impl Opened {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
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

    /// A lease of a tensor that is open already.
    pub(super) fn find(&self, id: TensorId, holder: &Holder) -> Option<Lease> {
        lock(&self.tensors).get(&id)?.record.find(holder)
    }

    /// A lease of what the daemon just leased to this process under `holder`'s name.
    pub(super) fn open(
        &self,
        descriptor: Descriptor,
        fds: &mut std::vec::IntoIter<OwnedFd>,
        holder: &Holder,
        home: Weak<dyn Home>,
    ) -> Result<Lease> {
        let id = descriptor.id.into();
        let fd = if descriptor.fd { fds.next() } else { None };
        let segment = match self.segment(&descriptor, fd) {
            Ok(segment) => segment,
            Err(error) => {
                self.give_back(id, holder.name());
                return Err(error);
            }
        };
        self.enter(descriptor, segment, None, holder, home)
    }

    /// A lease of what this process just published from memory of its own.
    pub(super) fn made(
        &self,
        mut descriptor: Descriptor,
        segment: Arc<dyn Segment>,
        key: Option<Key>,
        holder: &Holder,
        home: Weak<dyn Home>,
    ) -> Result<Lease> {
        // Its own segment begins where the tensor does.
        descriptor.offset_bytes = 0;
        descriptor.segment.bytes = segment.len() as u64;
        self.enter(descriptor, segment, key, holder, home)
    }

    /// A lease of a part of a segment that this process just published.
    pub(super) fn part(
        &self,
        descriptor: Descriptor,
        segment: &Arc<dyn Segment>,
        holder: &Holder,
        home: Weak<dyn Home>,
    ) -> Result<Lease> {
        self.enter(descriptor, Arc::clone(segment), None, holder, home)
    }

    fn enter(
        &self,
        descriptor: Descriptor,
        segment: Arc<dyn Segment>,
        key: Option<Key>,
        holder: &Holder,
        home: Weak<dyn Home>,
    ) -> Result<Lease> {
        let id: TensorId = descriptor.id.into();
        let make = || {
            let charge = self.budget.take(0).ok_or_else(|| Error::new(ErrorKind::OverBudget, "no memory"))?;
            let (spec, layout) = (descriptor.spec.to_domain()?, descriptor.layout()?);
            let created = Duration::ZERO;
            let parts = RecordParts { id, spec, layout, segment, charge, kept: false, private: false, key, created };
            Ok(Record::new(parts, home))
        };
        let mut tensors = lock(&self.tensors);
        if let Some(lease) = tensors.get(&id).and_then(|open| open.record.find(holder)) {
            drop(tensors);
            // The record has a lease of the daemon's already.
            self.give_back(id, holder.name());
            return Ok(lease);
        }
        // A record that was closed and is about to be forgotten, which it then is here.
        let mut closed = None;
        let entered = make().and_then(|record: Arc<Record>| {
            let lease = record.find(holder).ok_or_else(|| Error::new(ErrorKind::Conflict, "a new tensor is closed"))?;
            closed = tensors.insert(id, Open { record, holder: Arc::from(holder.name()) });
            Ok(lease)
        });
        drop(tensors);
        if let Some(open) = closed {
            self.give_back(id, &open.holder);
        }
        if entered.is_err() {
            self.give_back(id, holder.name());
        }
        entered
    }

    /// The last lease of a record is gone and it is closed.
    pub(super) fn forget(&self, record: &Arc<Record>) {
        let mut tensors = lock(&self.tensors);
        // The tensor may have been opened anew since it was closed.
        let gone = match tensors.get(&record.id()) {
            Some(open) if Arc::ptr_eq(&open.record, record) => tensors.remove(&record.id()),
            _ => None,
        };
        drop(tensors);
        if let Some(open) = gone {
            self.give_back(record.id(), &open.holder);
        }
    }

    fn give_back(&self, id: TensorId, holder: &str) {
        let leases = vec![p::LeaseParams { id: id.into(), holder: holder.to_owned() }];
        self.link.tell::<p::Release>(&p::ReleaseParams { leases });
    }

    fn segment(&self, descriptor: &Descriptor, fd: Option<OwnedFd>) -> Result<Arc<dyn Segment>> {
        let info = descriptor.segment;
        let mut segments = lock(&self.segments);
        if fd.is_none()
            && let Some(segment) = segments.get(&info.id).and_then(Weak::upgrade)
        {
            return Ok(segment);
        }
        let fd = match fd {
            Some(fd) => fd,
            None => {
                let (_, fds) = self.link.call::<p::SegmentFd>(&p::SegmentParams { segment: info.id }, Vec::new())?;
                fds.into_iter().next().ok_or_else(|| Error::corrupt("a segment's descriptor did not come"))?
            }
        };
        let len = usize::try_from(info.bytes).map_err(|_| Error::unsupported("a segment beyond this process"))?;
        let guarantee = if info.slab { Guarantee::ProducerOnly } else { Guarantee::Immutable };
        let segment = Arc::new(SealedMemfd::open(fd, len, guarantee)?);
        segments.retain(|_, segment| segment.strong_count() > 0);
        segments.insert(info.id, Arc::downgrade(&segment));
        Ok(segment)
    }
}
