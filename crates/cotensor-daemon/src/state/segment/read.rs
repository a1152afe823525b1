//! Reads of segments and their identities.

use cotensor_core::{Error, Layout, Result};
use cotensor_store::Lease;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// The identity of a memfd: device and inode number. It tells whether a session has reopened the same slab.
pub(crate) type Inode = (u64, u64);

/// The identity of a file.
///
/// # Errors
/// `Io`.
pub(crate) fn inode(fd: impl AsFd) -> Result<Inode> {
    let found = rustix::fs::fstat(fd).map_err(|error| Error::io("reading a segment's status", &error.into()))?;
    Ok((found.st_dev as u64, found.st_ino as u64))
}

/// Whether a tensor lies at `offset` bytes of the host memory of `fd` with this layout. Descriptors of devices identify nothing.
pub(crate) fn is_in(lease: &Lease, fd: BorrowedFd<'_>, offset: usize, layout: &Layout) -> bool {
    let (segment, known) = (lease.segment(), lease.layout());
    let is_same = |of_tensor: BorrowedFd<'_>| inode(of_tensor).ok().is_some_and(|known| inode(fd).ok() == Some(known));
    segment.device().is_host()
        && (known.dtype(), known.shape(), known.strides()) == (layout.dtype(), layout.shape(), layout.strides())
        && segment.fd_offset() + known.offset_bytes() == offset
        && segment.fd().is_some_and(is_same)
}

pub(super) fn read(file: &File, offset: usize, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(target, offset as u64).map_err(|error| Error::io("reading a segment", &error))
}
