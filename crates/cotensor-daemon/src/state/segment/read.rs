//! Reads of segments and their identities.

use cotensor_core::{Error, Result};
use std::fs::File;
use std::os::fd::AsFd;
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

pub(super) fn read(file: &File, offset: usize, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(target, offset as u64).map_err(|error| Error::io("reading a segment", &error))
}
