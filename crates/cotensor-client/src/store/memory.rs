//! Memory that this process makes for what it publishes.

use super::{Link, lock};
use crate::protocol::{self as p, Descriptor, Spec};
use cotensor_core::{Error, ErrorKind, Memory, Result, Segment, SegmentMut};
use cotensor_memory::{MemfdPool, Slab};
use cotensor_store::TensorSpec;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Bytes of one slab.
const SLAB_BYTES: usize = 4 << 20;
/// Bytes that wait warm for the next large tensor.
const POOL_BYTES_MAX: usize = 1 << 30;

/// The slabs of one session, for small tensors.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Mutex<Vec<Open>>,
    freed: Freed,
    pub(super) pool: Pool,
}

struct Open {
    slab: Slab,
    number: u64,
}

/// Memory for large tensors.
pub(super) struct Pool(MemfdPool);

impl Default for Pool {
    fn default() -> Self {
        Self(MemfdPool::new(POOL_BYTES_MAX))
    }
}

impl Pool {
    pub(super) fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.0.reserve(len)
    }

    pub(super) fn prepare(&self, len: usize, count: usize) -> Result<usize> {
        self.0.prefault(len, count)
    }
}

type Parts = HashMap<(u64, u64), Arc<dyn Segment>>;

/// Published ranges of slabs, which are not used again before the daemon says that nobody leases them.
#[derive(Clone, Default)]
pub(super) struct Freed(Arc<Mutex<Parts>>);

impl Freed {
    /// The daemon said so.
    pub(super) fn add(&self, params: &p::FreedParams) {
        let mut parts = lock(&self.0);
        let freed: Vec<_> = params.offsets.iter().map(|&offset| parts.remove(&(params.slab, offset))).collect();
        drop(parts);
        drop(freed);
    }
}

impl Slabs {
    pub(super) fn freed(&self) -> Freed {
        self.freed.clone()
    }

    /// A range of a slab, of a new one if it must be.
    pub(super) fn place(&self, link: &Link, len: usize) -> Result<(Place, Box<dyn SegmentMut>)> {
        let mut slabs = lock(&self.slabs);
        // The newest is the emptiest.
        for open in slabs.iter().rev() {
            match open.slab.reserve(len) {
                Ok(segment) => return Ok((Place::Slab(open.number), segment)),
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                Err(error) => return Err(error),
            }
        }
        let slab = Slab::create(SLAB_BYTES.max(len))?;
        let fd = slab.fd().try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        let (opened, _) = link.call::<p::OpenSlab>(&p::SlabParams { bytes: slab.len() as u64 }, vec![fd])?;
        let segment = slab.reserve(len)?;
        slabs.push(Open { slab, number: opened.slab });
        Ok((Place::Slab(opened.slab), segment))
    }
}

/// Where an unpublished tensor lies, as the daemon knows it.
pub(super) enum Place {
    /// In one of the session's slabs.
    Slab(u64),
    /// In memory of its own, for which the daemon has reserved.
    Own(Reserved),
}

/// A reservation of the daemon's, given back unless it is published.
pub(super) struct Reserved {
    number: u64,
    link: Arc<Link>,
    published: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.published {
            self.link.tell::<p::Discard>(&p::ReservationParams { reservation: self.number });
        }
    }
}

impl Place {
    /// Memory of its own for a tensor of `len` bytes, if the daemon has room for it.
    pub(super) fn reserved(
        link: &Arc<Link>,
        pool: &Pool,
        params: &p::ReserveParams,
        len: usize,
    ) -> Result<(Self, Box<dyn SegmentMut>)> {
        let number = link.ask::<p::Reserve>(params)?.reservation;
        let reserved = Reserved { number, link: Arc::clone(link), published: false };
        Ok((Self::Own(reserved), pool.reserve(len)?))
    }

    /// Publishes what `segment` holds now.
    pub(super) fn publish(
        self,
        link: &Link,
        slabs: &Slabs,
        spec: &TensorSpec,
        segment: &Arc<dyn Segment>,
        holder: &str,
        ticket: Option<u64>,
    ) -> Result<Descriptor> {
        match self {
            Self::Own(mut reserved) => {
                let params = p::PublishParams { reservation: reserved.number, ticket };
                reserved.published = true;
                Ok(link.call::<p::Publish>(&params, vec![descriptor_of(&**segment)?])?.0)
            }
            Self::Slab(slab) => {
                let offset = segment.fd_offset() as u64;
                let (spec, holder) = (Spec::from(spec), holder.to_owned());
                // Kept before anybody is told: the daemon may say at once that nobody leases it.
                lock(&slabs.freed.0).insert((slab, offset), Arc::clone(segment));
                let params = p::PublishSlabParams { slab, offset, spec, holder, ticket };
                let published = link.ask::<p::PublishSlab>(&params);
                if published.is_err() {
                    lock(&slabs.freed.0).remove(&(slab, offset));
                }
                published
            }
        }
    }
}

/// A descriptor of a segment, to send.
pub(super) fn descriptor_of(segment: &dyn Segment) -> Result<OwnedFd> {
    let fd = segment.fd().ok_or_else(|| Error::unsupported("this memory has no descriptor"))?;
    fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))
}
