//! Memfds that another process publishes, and that this one helps to fill.

use crate::mapping::{Access, Mapping};
use cotensor_core::{Error, ErrorKind, Result, padded};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// The unpublished memory of another process of this user, mapped for writing.
///
/// The other process publishes it. What this one writes afterwards, other processes do not see: the publisher seals the
/// memfd only if no process can write it, and copies it otherwise.
pub struct ForeignMemfd(Mapping);

impl ForeignMemfd {
    /// Maps the first `len` bytes of a memfd that [`SegmentMut::writable_fd`](cotensor_core::SegmentMut::writable_fd)
    /// gave in the other process.
    ///
    /// # Errors
    /// `Conflict` for a memfd that was published; `Refused` for another file, and for one of fewer bytes; `Io`.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Self> {
        let refused = |message: &str| Error::new(ErrorKind::Refused, message.to_owned());
        let seals = fcntl_get_seals(&fd).map_err(|_| refused("the descriptor is not a memfd"))?;
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(Error::new(ErrorKind::Conflict, "the tensor was published".to_owned()));
        }
        let found = fstat(&fd).map_err(|error| Error::io("cannot read the size of shared memory", &error.into()))?;
        if padded(len).is_err() || u64::try_from(found.st_size).map_or(true, |size| size < len as u64) {
            return Err(refused(&format!("it has {} bytes, {len} were announced", found.st_size)));
        }
        Ok(Self(Mapping::new(fd.as_fd(), len, Access::Write)?))
    }

    /// The address of the first byte. The bytes stay mapped while this exists; other processes write them too.
    pub fn start(&self) -> NonNull<u8> {
        self.0.start()
    }
}
