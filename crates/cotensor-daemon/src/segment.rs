//! Memory that clients made: checked, kept, passed on, and never mapped here.

use cotensor_core::{Device, Error, MemoryKind, Result, Segment};
use cotensor_memory::{Guarantee, check_sealed};
use cotensor_store::Share;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A memfd that nobody can write any more.
pub(crate) struct Sealed {
    file: File,
    len: usize,
}

impl Sealed {
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes with every seal.
    pub(crate) fn new(fd: OwnedFd, len: usize) -> Result<Self> {
        check_sealed(&fd, len, Guarantee::Immutable)?;
        Ok(Self { file: fd.into(), len })
    }
}

impl Segment for Sealed {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        read(&self.file, offset, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// A memfd that one session, and nobody else, can write.
pub(crate) struct Slab {
    file: File,
    len: usize,
    share: Share,
}

impl Slab {
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes that takes no new writer.
    pub(crate) fn new(fd: OwnedFd, len: usize, share: Share) -> Result<Self> {
        check_sealed(&fd, len, Guarantee::ProducerOnly)?;
        Ok(Self { file: fd.into(), len, share })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }
}

/// A tensor's place in a slab. When it goes, nobody leases the place any more.
pub(crate) struct Part {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
    freed: Box<dyn Fn(usize) + Send + Sync>,
}

impl Part {
    /// `freed` is told the offset when the part goes.
    ///
    /// # Errors
    /// `Invalid` when the place is not inside the slab.
    pub(crate) fn new(
        slab: Arc<Slab>,
        offset: usize,
        len: usize,
        freed: Box<dyn Fn(usize) + Send + Sync>,
    ) -> Result<Self> {
        if !offset.is_multiple_of(cotensor_core::ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > slab.len)
        {
            let message = format!("{len} bytes at {offset} are no place in a slab of {}", slab.len);
            return Err(Error::invalid(message).in_field("offset"));
        }
        Ok(Self { slab, offset, len, freed })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        (self.freed)(self.offset);
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
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
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

fn read(file: &File, offset: usize, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(target, offset as u64).map_err(|error| Error::io("reading a segment", &error))
}
