//! A tensor's own host memory: sealed, kept by its descriptor, not mapped.

use super::read::read;
use cotensor_core::{Device, Error, MemoryKind, Result, Segment};
use cotensor_memory::{Guarantee, MemfdMut, check_no_holes, check_sealed};
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A memfd that is sealed against writing.
pub(crate) struct Sealed {
    /// Shared with the journal.
    pub(super) file: Arc<File>,
    len: usize,
}

impl Sealed {
    /// Memory that a client made.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes, all of them backed by memory, with every seal.
    pub(crate) fn new(fd: OwnedFd, len: usize) -> Result<Self> {
        let sealed = Self::known(Arc::new(fd.into()), len)?;
        check_no_holes(&*sealed.file, len)?;
        Ok(sealed)
    }

    /// Memory that a former server, or this process, has checked to have no holes.
    ///
    /// # Errors
    /// `Refused` for anything but a memfd of `len` bytes with every seal.
    pub(crate) fn known(file: Arc<File>, len: usize) -> Result<Self> {
        check_sealed(&*file, len, Guarantee::Immutable)?;
        Ok(Self { file, len })
    }

    /// Seals memory that this process filled. The daemon keeps its descriptor and unmaps it.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub(crate) fn of(memory: MemfdMut) -> Result<Self> {
        let sealed = memory.seal()?;
        let fd = sealed.fd().ok_or_else(|| Error::unsupported("this memory has no descriptor"))?;
        let fd = fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
        Self::known(Arc::new(fd.into()), sealed.len())
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
        Device::default()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        read(&self.file, offset, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
