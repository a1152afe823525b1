//! Memfds that are being written.

use super::allocate::{Unbacked, allocate, back, back_part, back_with, create, part_of};
use super::seal::{Guarantee, seal};
use super::sealed::{SealedMemfd, import};
use crate::host::parallel_copy::{PARALLEL_COPY_BYTES_MIN, copy_parallel};
use crate::mapping::{Access, AliasedMapping, Mapping, OnFork};
use crate::process::PendingMemory;
use cotensor_core::sync::{get_mut, lock};
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, range_within};
use rustix::fs::ftruncate;
use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Memory in memfds, one for each segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemfdMemory;

impl Memory for MemfdMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(MemfdMut::create(len)?))
    }

    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(MemfdMut::create(len)?.into_aliased()?))
    }

    fn import(&self, fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        import(fd, len, kind)
    }
}

/// A memfd that only this process has mapped, for writing.
///
/// Forked children do not inherit the mapping, so they cannot keep the memfd from being sealed. They inherit it if
/// other code keeps its address ([`Memory::reserve_aliased`]).
pub struct MemfdMut {
    map: Writable,
    pub(super) fd: OwnedFd,
    /// The used length in bytes; the mapping may be longer.
    len: usize,
    /// Memory that does not exist yet. Each access but a write of all bytes makes it before.
    missing: Mutex<Option<Missing>>,
}

/// Memory of which parts do not exist yet.
struct Missing {
    /// Counts what does not exist.
    pending: PendingMemory,
    /// Which of its parts exist; empty before the first one does.
    made: Vec<bool>,
}

enum Writable {
    Own(Mapping),
    /// Other code in this process keeps the address.
    Aliased(AliasedMapping),
}

impl Writable {
    fn mapping(&self) -> Option<&Mapping> {
        match self {
            Writable::Own(map) => Some(map),
            Writable::Aliased(map) => map.mapping(),
        }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Writable::Own(map) => map.bytes_mut(),
            Writable::Aliased(map) => map.mapping_mut()?.bytes_mut(),
        }
    }
}

impl MemfdMut {
    /// Creates a memfd of `len` zeroed bytes, all of them backed by memory.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `OverBudget` when the system's memory or this process's descriptors do
    /// not suffice, `Io`.
    pub fn create(len: usize) -> Result<Self> {
        let (fd, map) = allocate(len, OnFork::Exclude)?;
        Ok(Self { map: Writable::Own(map), fd, len, missing: Mutex::default() })
    }

    /// As [`create`](Self::create), but memory is reserved at the first access. A write of all bytes at once takes less time then.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(crate) fn create_to_fill(len: usize) -> Result<Self> {
        let Unbacked { fd, map, pending } = create(len, OnFork::Exclude)?;
        Ok(Self { map: Writable::Own(map), fd, len, missing: Mutex::new(Some(Missing { pending, made: Vec::new() })) })
    }

    /// Reserves the memory, unless it exists.
    fn back(&self) -> Result<()> {
        let mut missing = lock(&self.missing);
        if let Some(parts) = missing.as_mut() {
            let map = self.map.mapping().ok_or_else(unmapped)?;
            if parts.made.is_empty() {
                back(self.fd.as_fd(), map)?;
            } else {
                parts.make(self.fd.as_fd(), map, 0..map.len())?;
            }
            // Faults during the copy of one thread would take twice as long as all at once; several threads share them.
            if map.len() < PARALLEL_COPY_BYTES_MIN {
                map.prefault()?;
            }
            *missing = None;
        }
        Ok(())
    }

    /// Whether the memory exists.
    pub(crate) fn is_backed(&self) -> bool {
        // Not `lock`: in a forked child, a thread that does not exist there may hold it for ever.
        self.missing.try_lock().is_ok_and(|missing| missing.is_none())
    }

    /// Copies `source`, which is as long as the memory, into memory that does not exist yet. False if it exists.
    fn fill_missing(&mut self, source: &[u8]) -> Result<bool> {
        let missing = get_mut(&mut self.missing);
        let (Some(Missing { made, .. }), Writable::Own(map)) = (&missing, &mut self.map) else { return Ok(false) };
        if !made.is_empty() {
            return Ok(false);
        }
        back_with(self.fd.as_fd(), map, source)?;
        *missing = None;
        Ok(true)
    }

    /// Faults in every page, so that filling the memfd runs at memory speed.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    pub fn prefault(&self) -> Result<()> {
        self.back()?;
        self.map.mapping().map_or(Ok(()), Mapping::prefault)
    }

    /// The longest length in bytes that [`resize`](Self::resize) allows.
    pub(crate) fn capacity(&self) -> usize {
        self.map.mapping().map_or(0, Mapping::len)
    }

    /// Uses the first `len` bytes, at most the capacity. They keep their previous values.
    pub(crate) fn resize(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Lets other code in this process keep the address of the bytes: from now on
    /// [`pin_address`](SegmentMut::pin_address) returns a handle, and forked children inherit the mapping.
    pub(crate) fn into_aliased(self) -> Result<Self> {
        let map = match self.map {
            Writable::Own(map) => AliasedMapping::new(map)?,
            Writable::Aliased(map) => map,
        };
        Ok(Self { map: Writable::Aliased(map), ..self })
    }

    pub(crate) fn is_aliased(&self) -> bool {
        matches!(self.map, Writable::Aliased(_))
    }

    /// Ends writing: from now on no process can write or resize the memfd. It cannot be reused for another tensor.
    ///
    /// The bytes keep their address. An aliased memfd is the exception: the address becomes a private mapping for the
    /// code that keeps it, and the bytes are mapped a second time. If a forked child can still write the memfd, the
    /// bytes are copied to a new one.
    ///
    /// # Errors
    /// `Conflict` while another mapping can write the memfd; `Io`.
    pub fn seal(self) -> Result<SealedMemfd> {
        self.back()?;
        let Self { map, fd, len, .. } = self;
        match map {
            Writable::Own(map) => {
                let map = map.remap_private(fd.as_fd(), len, Access::Read)?;
                truncate_and_seal(&fd, len)?;
                Ok(SealedMemfd::new(map, fd, Guarantee::Immutable))
            }
            Writable::Aliased(map) => seal_aliased(map.remap_copy_on_write(fd.as_fd(), len)?, fd, len),
        }
    }
}

impl Missing {
    /// Makes the parts that `range`, which is not empty, touches.
    fn make(&mut self, fd: BorrowedFd<'_>, map: &Mapping, range: Range<usize>) -> Result<()> {
        let part = part_of(map.len());
        self.made.resize(map.len().div_ceil(part), false);
        for number in range.start / part..range.end.div_ceil(part) {
            if !self.made[number] {
                let range = number * part..map.len().min((number + 1) * part);
                back_part(fd, map, range.clone())?;
                self.pending.exists(range.len());
                self.made[number] = true;
            }
        }
        Ok(())
    }
}

fn unmapped() -> Error {
    Error::io("reserving memory", &std::io::ErrorKind::AddrNotAvailable.into())
}

fn seal_aliased(aliased: AliasedMapping, fd: OwnedFd, len: usize) -> Result<SealedMemfd> {
    let sealed = match truncate_and_seal(&fd, len) {
        Ok(()) => SealedMemfd::new(Mapping::new(fd.as_fd(), len, Access::Read)?, fd, Guarantee::Immutable),
        Err(error) if error.kind() == ErrorKind::Conflict => {
            let mut copy = MemfdMut::create(len)?;
            copy.write_at(0, aliased.mapping().map_or(&[], Mapping::bytes))?;
            let sealed = copy.seal()?;
            // The address shows the copy from now on: the process that can write the first memfd does not change it.
            let aliased = aliased.remap_copy_on_write(sealed.fd.as_fd(), len)?;
            return Ok(sealed.with_aliased(aliased));
        }
        Err(error) => return Err(error),
    };
    Ok(sealed.with_aliased(aliased))
}

/// Sets the final length and seals. The seal succeeds only when no writable mapping is left in any process, which
/// proves that no process can write the memfd any more.
fn truncate_and_seal(fd: &OwnedFd, len: usize) -> Result<()> {
    ftruncate(fd, len as u64).map_err(|error| Error::io("cannot size shared memory", &error.into()))?;
    seal(fd, Guarantee::Immutable)
}

impl SegmentMut for MemfdMut {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.back().ok()?;
        self.map.mapping()?.bytes().get(..self.len)
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.back().ok()?;
        self.map.bytes_mut()?.get_mut(..self.len)
    }

    fn unpopulated_address(&mut self) -> Option<NonNull<u8>> {
        self.map.mapping().map(Mapping::start)
    }

    fn populate(&self, range: Range<usize>) -> Result<()> {
        let range = range_within(range.start, range.len(), self.len)?;
        if range.len() == self.len || self.capacity() < PARALLEL_COPY_BYTES_MIN {
            return self.back();
        }
        let mut missing = lock(&self.missing);
        if let (Some(parts), false) = (missing.as_mut(), range.is_empty()) {
            parts.make(self.fd.as_fd(), self.map.mapping().ok_or_else(unmapped)?, range)?;
            missing.take_if(|parts| parts.made.iter().all(|made| *made));
        }
        Ok(())
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.len)?;
        if range.len() == self.len && self.fill_missing(source)? {
            return Ok(());
        }
        self.back()?;
        copy_parallel(&mut self.map.bytes_mut().unwrap_or_default()[range], source);
        Ok(())
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        match &self.map {
            Writable::Own(_) => None,
            Writable::Aliased(map) => Some(map.handle()),
        }
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_aliased().then(|| self.fd.as_fd())
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(self.seal()?.register())
    }
}
