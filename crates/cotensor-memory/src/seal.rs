//! Seals: what the kernel guarantees about a memfd, whoever holds a descriptor of it.

use cotensor_core::{Error, ErrorKind, Result, padded};
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long sealing waits for a writable mapping that a forked child has until it starts its own program.
const FORK_WAIT: Duration = Duration::from_millis(2);
const FORK_WAITS_MAX: usize = 20;
/// The file system that memfds belong to (`TMPFS_MAGIC` of the kernel's magic.h).
const TMPFS: u64 = 0x0102_1994;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// What a receiver of a memfd can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// Nobody can change the bytes any more, ever (`F_SEAL_WRITE`): a large tensor of its own.
    Immutable,
    /// Nobody but the producer, who mapped it before, can change them (`F_SEAL_FUTURE_WRITE`): a slab. An honest
    /// producer leaves a range alone while anyone holds a lease on it; a hostile one cannot be kept from writing.
    ProducerOnly,
}

impl Guarantee {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW;
        match self {
            Guarantee::Immutable => size | SealFlags::WRITE,
            Guarantee::ProducerOnly => size | SealFlags::FUTURE_WRITE,
        }
    }
}

/// Seals a memfd for good.
///
/// # Errors
/// `Conflict` for [`Guarantee::Immutable`] while somebody can still write it: a forked child, for example.
pub(crate) fn seal(fd: impl AsFd, guarantee: Guarantee) -> Result<()> {
    for _ in 0..FORK_WAITS_MAX {
        match fcntl_add_seals(&fd, guarantee.seals() | SealFlags::SEAL) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => std::thread::sleep(FORK_WAIT),
            Err(error) => return Err(Error::io("cannot seal shared memory", &error.into())),
        }
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "cannot seal shared memory: another mapping, of a forked child perhaps, can write it",
    ))
}

/// Checks that `fd`, which may come from anyone, is a memfd of exactly `len` bytes, all backed by memory, that keeps
/// `guarantee` for as long as it exists. Neither maps nor reads it.
///
/// # Errors
/// `Refused` saying what is wrong.
pub fn check_sealed(fd: impl AsFd, len: usize, guarantee: Guarantee) -> Result<()> {
    let refused = |what: &str| Error::new(ErrorKind::Refused, format!("not a published segment: {what}"));
    let unreadable = |error: Errno| Error::io("cannot look at a descriptor", &error.into());
    if u64::try_from(fstatfs(&fd).map_err(unreadable)?.f_type).ok() != Some(TMPFS) {
        return Err(refused("the descriptor is no memfd"));
    }
    let seals = fcntl_get_seals(&fd).map_err(|_| refused("the descriptor is no memfd"))?;
    // What nobody can write, the producer cannot either.
    if !seals.contains(guarantee.seals()) && !seals.contains(Guarantee::Immutable.seals()) {
        return Err(refused(&format!("it has the seals {seals:?}; {:?} are needed", guarantee.seals())));
    }
    // The seals bind the memfd, its mode this descriptor: through one that only writes, nobody could read or map it.
    if fcntl_getfl(&fd).map_err(unreadable)? & OFlags::ACCMODE == OFlags::WRONLY {
        return Err(refused("the descriptor cannot be read"));
    }
    let found = fstat(&fd).map_err(unreadable)?;
    if padded(len).is_err() || u64::try_from(found.st_size).ok() != Some(len as u64) {
        return Err(refused(&format!("it has {} bytes, {len} were announced", found.st_size)));
    }
    // Whoever touches a hole pays for it, or dies if nothing is left.
    if u64::try_from(found.st_blocks).is_ok_and(|blocks| blocks.saturating_mul(BLOCK_BYTES) < len as u64) {
        return Err(refused("not all of it is backed by memory"));
    }
    Ok(())
}
