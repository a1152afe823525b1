//! Reservations: tensors that are being written.

use crate::backend::{StoreBackend, UnpublishedTensor};
use crate::types::member_layout;
use crate::{CopyReason, Expected, Lease, Members, Retention};
use cotensor_core::{Device, Error, Layout, Result, SegmentMut};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// The memory of an unpublished tensor, which its holder writes. Dropping it frees the memory.
pub struct Reservation {
    pub(crate) tensor: UnpublishedTensor,
    pub(crate) backend: Arc<dyn StoreBackend>,
}

impl Reservation {
    /// A reservation that `backend` publishes.
    pub fn new(tensor: UnpublishedTensor, backend: Arc<dyn StoreBackend>) -> Self {
        Self { tensor, backend }
    }

    /// The name that publishing gives it.
    pub fn name(&self) -> &str {
        &self.tensor.spec.name
    }

    /// How the elements lie in the segment: row-major.
    pub fn layout(&self) -> &Layout {
        &self.tensor.layout
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.tensor.spec.device
    }

    /// The bytes; `None` where the host cannot address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.tensor.segment.bytes()
    }

    /// The bytes for writing in place; `None` where the host cannot address them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.tensor.segment.bytes_mut()
    }

    /// The address of the first byte in the host's memory, for code that calls [`populate`](Self::populate) for the bytes that it is about
    /// to write there. `None` where the host cannot address them.
    pub fn unpopulated_address(&mut self) -> Option<NonNull<u8>> {
        self.tensor.segment.unpopulated_address()
    }

    /// Makes the memory of a range of bytes exist, unless it does.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside the memory, `Io` when the system has no memory left.
    pub fn populate(&self, range: Range<usize>) -> Result<()> {
        self.tensor.segment.populate(range)
    }

    /// The address of the first byte for programs on the device, which may write there until publication.
    ///
    /// # Errors
    /// `Unsupported` for memory that no device addresses.
    pub fn device_address(&self) -> Result<u64> {
        self.tensor.segment.device_address()
    }

    /// Keeps the address of the bytes valid while the returned value exists, even if publishing fails. `None` unless it
    /// was reserved by [`TensorStore::reserve_aliased`](crate::TensorStore::reserve_aliased).
    pub fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.tensor.segment.pin_address()
    }

    /// The descriptor by which other processes of this user may help to write it, until it is published. `None` unless
    /// it was reserved by [`TensorStore::reserve_aliased`](crate::TensorStore::reserve_aliased), and for memory without
    /// one.
    #[cfg(unix)]
    pub fn writable_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.tensor.segment.writable_fd()
    }

    /// Copies `bytes` to the start of the tensor, and counts the copy under `reason`.
    ///
    /// # Errors
    /// `Invalid` when they do not fit; `Unsupported` where the host cannot write the memory.
    pub fn write(&mut self, bytes: &[u8], reason: CopyReason) -> Result<()> {
        self.tensor.segment.write_at(self.tensor.layout.offset_bytes(), bytes)?;
        self.backend.count_copy(&self.tensor.spec.name, reason, bytes.len());
        Ok(())
    }

    /// Lets `write` write the tensor, whose first byte is at the given offset in the segment, and counts a copy of `bytes` bytes under
    /// `reason`.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write_by(
        &mut self,
        bytes: usize,
        reason: CopyReason,
        write: impl FnOnce(&mut dyn SegmentMut, usize) -> Result<()>,
    ) -> Result<()> {
        self.write_part(write)?;
        self.record_copy(reason, bytes);
        Ok(())
    }

    /// As [`write_by`](Self::write_by), for a part of a copy that [`record_copy`](Self::record_copy) counts as a whole.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write_part(&mut self, write: impl FnOnce(&mut dyn SegmentMut, usize) -> Result<()>) -> Result<()> {
        write(&mut *self.tensor.segment, self.tensor.layout.offset_bytes())
    }

    /// The members of a group; `None` for a plain tensor.
    pub fn members(&self) -> Option<&Members> {
        self.tensor.spec.members.as_deref()
    }

    /// The bytes of a group's member for writing in place; `None` where the host cannot address them.
    ///
    /// # Errors
    /// `NotFound` for another name, and for a plain tensor.
    pub fn member_bytes_mut(&mut self, member: &str) -> Result<Option<&mut [u8]>> {
        let range = self.member_layout(member)?.byte_range();
        Ok(self.bytes_mut().and_then(|bytes| bytes.get_mut(range)))
    }

    /// Copies `bytes` to a group's member, and counts the copy under `reason`.
    ///
    /// # Errors
    /// As [`member_bytes_mut`](Self::member_bytes_mut); `Invalid` for bytes of another length than the member's;
    /// `Unsupported` where the host cannot write the memory.
    pub fn write_member(&mut self, member: &str, bytes: &[u8], reason: CopyReason) -> Result<()> {
        let layout = self.member_layout(member)?;
        if bytes.len() != layout.size_bytes() {
            let message = format!("the member {member:?} has {} bytes, not {}", layout.size_bytes(), bytes.len());
            return Err(Error::invalid(message).in_field(self.name()));
        }
        self.tensor.segment.write_at(layout.offset_bytes(), bytes)?;
        self.record_copy(reason, bytes.len());
        Ok(())
    }

    /// How a member's elements lie in the segment.
    fn member_layout(&self, member: &str) -> Result<Layout> {
        let layout = member_layout(self.members(), member, self.layout().offset_bytes());
        layout.map_err(|error| error.in_field(self.name()))
    }

    /// Counts a copy of `bytes` bytes into the tensor that did not use [`write`](Self::write).
    pub fn record_copy(&self, reason: CopyReason, bytes: usize) {
        self.backend.count_copy(&self.tensor.spec.name, reason, bytes);
    }

    /// Sets the time that computing a cached tensor again takes. Eviction orders tensors by it.
    pub fn set_recompute(&mut self, time: Duration) {
        if let Retention::Cached { recompute } = &mut self.tensor.spec.retention {
            *recompute = time;
        }
    }

    /// Makes the tensor immutable, publishes it under its name, and leases it to its holder.
    ///
    /// # Errors
    /// `Io` when the memory cannot be sealed.
    pub fn publish(self) -> Result<Lease> {
        self.backend.publish(self.tensor, None)
    }

    /// As [`publish`](Self::publish), if the newest version of the name is the expected one then: no other publication comes in
    /// between.
    ///
    /// # Errors
    /// `Conflict` when the name has another newest version. A client of the daemon also returns it for a publication that has
    /// succeeded, if the server has ended before its answer.
    pub fn publish_expecting(mut self, expected: Expected) -> Result<Lease> {
        self.tensor.expected = expected;
        self.publish()
    }

    /// Whether `backend` publishes it.
    pub(crate) fn is_of(&self, backend: &Arc<dyn StoreBackend>) -> bool {
        // `addr_eq` compares the objects. Their vtables may exist more than once.
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(backend))
    }

    /// Publishes several tensors, in one round trip where that is possible. The outcomes are in the same order; a failure does not stop the
    /// others.
    ///
    /// # Errors
    /// Each as [`publish`](Self::publish).
    pub fn publish_each(reservations: Vec<Self>) -> Vec<Result<Lease>> {
        let Some(backend) = reservations.first().map(|first| Arc::clone(&first.backend)) else { return Vec::new() };
        if reservations.iter().all(|own| own.is_of(&backend)) {
            backend.publish_each(reservations.into_iter().map(|own| (own.tensor, None)).collect())
        } else {
            reservations.into_iter().map(Self::publish).collect()
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} {:?})", self.name(), self.layout())
    }
}
