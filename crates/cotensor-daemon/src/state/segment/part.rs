//! A tensor's range in a slab.

use super::read::read;
use super::slab::{Slab, SlabOwner, Uses};
use cotensor_core::{Device, Error, ErrorKind, MemoryKind, Result, Segment};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard};

/// A tensor's range in a slab. Dropping it ends the last lease of the range.
pub(crate) struct Part {
    pub(super) slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Part {
    /// A range of `len` bytes at `offset`, for a tensor that `publisher` publishes. Once it is [`published`](Self::published), the slab's owner
    /// is notified when the last part at the offset is dropped.
    ///
    /// # Errors
    /// `Invalid` for a range outside the slab, `Conflict` when the slab has too many tensors, and when it belongs to another session: that of a
    /// client that has connected again.
    pub(crate) fn new(slab: Arc<Slab>, offset: usize, len: usize, publisher: &dyn SlabOwner) -> Result<Self> {
        let mut uses = used(&slab, offset, len)?;
        let owner = uses.owner.as_ref().filter(|(owner, _)| std::ptr::addr_eq(owner.as_ptr(), publisher));
        let number = owner.ok_or_else(|| Error::new(ErrorKind::Conflict, "a later session has this slab"))?.1;
        let range = uses.add_part(offset);
        if range.parts == 1 {
            range.is_published = publisher.on_range_used(number, offset as u64);
        }
        drop(uses);
        Ok(Self { slab, offset, len })
    }

    /// The range of a tensor that a former server has published.
    ///
    /// # Errors
    /// `Invalid` and `Conflict` as [`new`](Self::new).
    pub(crate) fn restored(slab: Arc<Slab>, offset: usize, len: usize) -> Result<Self> {
        used(&slab, offset, len)?.add_part(offset).is_published = true;
        Ok(Self { slab, offset, len })
    }

    /// Notes that the tensor was published, before its last lease can end.
    pub(crate) fn published(&self) {
        if let Some(range) = self.slab.uses().live.get_mut(&self.offset) {
            range.is_published = true;
        }
    }
}

/// The uses of a slab that has room for one more tensor, which is within it.
fn used(slab: &Slab, offset: usize, len: usize) -> Result<MutexGuard<'_, Uses>> {
    if !offset.is_multiple_of(cotensor_core::ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > slab.len) {
        let message = format!("{len} bytes at {offset} are not a place in a slab of {}", slab.len);
        return Err(Error::invalid(message).in_field("offset"));
    }
    let uses = slab.uses();
    if uses.parts >= slab.parts_max() {
        let message = format!("{} tensors are in this slab of {} bytes", uses.parts, slab.len);
        return Err(Error::new(ErrorKind::Conflict, message).in_field("slab"));
    }
    Ok(uses)
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut uses = self.slab.uses();
        uses.parts -= 1;
        let Some(range) = uses.live.get_mut(&self.offset) else { return };
        range.parts -= 1;
        if range.parts > 0 {
            return;
        }
        let is_awaited = range.is_published;
        uses.live.remove(&self.offset);
        let owner = uses.owner.as_ref().filter(|_| is_awaited);
        let owner = owner.and_then(|(owner, number)| Some((owner.upgrade()?, *number)));
        // Under the lock: the next publication in the range comes after it.
        if let Some((owner, number)) = &owner {
            owner.on_range_free(*number, self.offset as u64);
        }
        drop(uses);
        // Dropping the last reference to a session drops its tensors.
        drop(owner);
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

#[cfg(test)]
mod tests {
    use super::super::slab::Counted;
    use super::*;
    use crate::state::EndMark;
    use cotensor_core::sync::lock;
    use std::fs::File;
    use std::sync::{Mutex, Weak};

    const OFFSET: usize = 128;

    /// A session that writes down the slabs and offsets of free ranges.
    #[derive(Default)]
    struct Owner(Mutex<Vec<(u64, u64)>>, EndMark);

    impl Owner {
        fn took_reports(&self) -> Vec<(u64, u64)> {
            std::mem::take(&mut lock(&self.0))
        }
    }

    impl SlabOwner for Owner {
        fn end_mark(&self) -> &EndMark {
            &self.1
        }

        fn on_range_free(&self, number: u64, offset: u64) {
            lock(&self.0).push((number, offset));
        }

        fn on_range_used(&self, number: u64, offset: u64) -> bool {
            let mut reports = lock(&self.0);
            let before = reports.len();
            reports.retain(|report| *report != (number, offset));
            reports.len() < before
        }
    }

    /// A slab with number 1 at its owner.
    fn owned() -> (Arc<Slab>, Arc<Owner>) {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let slab = Slab::checked(file, 4096, Device::Cpu, Counted::WithTensors(Weak::new()));
        let owner = Arc::new(Owner::default());
        slab.belongs(&(Arc::clone(&owner) as Arc<dyn SlabOwner>), 1);
        (Arc::new(slab), owner)
    }

    fn part(slab: &Arc<Slab>, owner: &Owner) -> Result<Part> {
        Part::new(Arc::clone(slab), OFFSET, 64, owner)
    }

    #[test]
    fn end_of_the_last_published_tensor_is_reported() {
        let (slab, owner) = owned();
        drop(part(&slab, &owner).unwrap());
        assert_eq!(owner.took_reports(), [], "its publication failed");
        let (first, second) = (part(&slab, &owner).unwrap(), part(&slab, &owner).unwrap());
        first.published();
        drop(first);
        assert_eq!(owner.took_reports(), [], "the repeated one lies in the range");
        drop(second);
        assert_eq!(owner.took_reports(), [(1, 128)], "the client waits for the end of the first one");
    }

    #[test]
    fn report_that_was_not_sent_comes_after_the_next_tensor() {
        let (slab, owner) = owned();
        for is_published in [true, false] {
            let before = part(&slab, &owner).unwrap();
            before.published();
            drop(before);
            let next = part(&slab, &owner).unwrap();
            assert_eq!(*lock(&owner.0), [], "the next tensor may be leased when the client reads the report");
            if is_published {
                next.published();
            }
            drop(next);
            assert_eq!(owner.took_reports(), [(1, 128)]);
        }
    }

    #[test]
    fn next_session_of_a_client_waits_for_what_the_former_one_may_publish() {
        let (slab, owner) = owned();
        let late = part(&slab, &owner).unwrap();
        slab.disown(&*owner);
        let next = Arc::new(Owner::default());
        assert_eq!(slab.belongs(&(Arc::clone(&next) as Arc<dyn SlabOwner>), 2), [128]);
        assert_eq!(part(&slab, &owner).err().unwrap().kind(), ErrorKind::Conflict);
        drop(late);
        assert_eq!((owner.took_reports(), next.took_reports()), (vec![], vec![(2, 128)]));
    }
}
