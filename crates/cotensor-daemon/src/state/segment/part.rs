//! A tensor's range in a slab.

use super::read::read;
use super::slab::Slab;
use cotensor_core::{Device, Error, ErrorKind, MemoryKind, Result, Segment};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A tensor's range in a slab. Dropping it ends the last lease of the range.
pub(crate) struct Part {
    pub(super) slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Part {
    /// A range of `len` bytes at `offset`. The slab's owner is notified when the last part at the offset is dropped.
    ///
    /// # Errors
    /// `Invalid` for a range outside the slab, `Conflict` when the slab has too many tensors.
    pub(crate) fn new(slab: Arc<Slab>, offset: usize, len: usize) -> Result<Self> {
        if !offset.is_multiple_of(cotensor_core::ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > slab.len)
        {
            let message = format!("{len} bytes at {offset} are not a place in a slab of {}", slab.len);
            return Err(Error::invalid(message).in_field("offset"));
        }
        let mut uses = slab.uses();
        if uses.parts >= slab.parts_max() {
            let message = format!("{} tensors are in this slab of {} bytes", uses.parts, slab.len);
            return Err(Error::new(ErrorKind::Conflict, message).in_field("slab"));
        }
        uses.parts += 1;
        *uses.live.entry(offset).or_default() += 1;
        drop(uses);
        Ok(Self { slab, offset, len })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut uses = self.slab.uses();
        uses.parts -= 1;
        if let Some(count) = uses.live.get_mut(&self.offset) {
            *count -= 1;
            if *count > 0 {
                return;
            }
        }
        uses.live.remove(&self.offset);
        let owner = uses.owner.as_ref().and_then(|(owner, number)| Some((owner.upgrade()?, *number)));
        drop(uses);
        if let Some((owner, slab)) = owner {
            owner.on_range_free(slab, self.offset as u64);
        }
    }
}

impl Segment for Part {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Slab
    }

    fn device(&self) -> Device {
        self.slab.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        if !self.device().is_host() {
            return Err(Error::unsupported(format!("the daemon cannot read memory on {}", self.device())));
        }
        match offset.checked_add(target.len()) {
            Some(end) if end <= self.len => read(&self.slab.file, self.offset + offset, target),
            _ => Err(Error::invalid(format!("{} bytes at {offset} of {}", target.len(), self.len))),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.slab.fd())
    }

    fn fd_offset(&self) -> usize {
        self.offset
    }
}
