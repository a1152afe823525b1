//! Seals: what the kernel guarantees about a memfd, whoever holds a descriptor of it.

use crate::mapping::huge_page_bytes;
use cotensor_core::{Error, ErrorKind, Result, padded};
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat,
    fstatfs, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::param::page_size;
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

/// Checks that `fd`, which may come from anyone, is a memfd of exactly `len` bytes that keeps `guarantee` for as long as it
/// exists, and has as much memory as its length takes: no less, and no more, which nobody would count. Neither maps nor reads it.
///
/// # Errors
/// `Refused` saying what is wrong.
pub fn check_sealed(fd: impl AsFd, len: usize, guarantee: Guarantee) -> Result<()> {
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
    // A process that touches a hole pays for it, or dies if nothing is left.
    let backed = backed_bytes(&fd)?;
    if backed < len as u64 {
        return Err(refused("not all of it is backed by memory"));
    }
    // Pages beyond the end, which `fallocate` can make before the memfd is sealed.
    if backed > in_units(len, usual_unit(len)) && backed > in_units(len, smallest_unit()) {
        return Err(refused(&format!("its {len} bytes take {backed} bytes of memory")));
    }
    Ok(())
}

/// Checks that none of a memfd of `len` bytes, which passed [`check_sealed`], is a hole: one could be as long as what the memfd has
/// beyond its end. The kernel is asked to fill holes, which shows in how much memory there is. The seals keep new ones from being
/// made, so this holds for good.
///
/// # Errors
/// `Refused` for holes, and for a descriptor that is not open for writing; `Io` when the system has no more memory.
pub fn check_no_holes(fd: impl AsFd, len: usize) -> Result<()> {
    let before = backed_bytes(&fd)?;
    // A length of 0 is an error to the kernel.
    let filled = match len {
        0 => Ok(()),
        len => retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), 0, len as u64)),
    };
    filled.map_err(|error| match error {
        Errno::BADF => refused("the descriptor is not open for writing, as memfd_create opens it"),
        error => Error::io("cannot back a descriptor's memory", &error.into()),
    })?;
    if backed_bytes(&fd)? != before {
        return Err(refused("parts of it are holes, with no memory behind them"));
    }
    Ok(())
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("not a published segment: {what}"))
}

fn unreadable(error: Errno) -> Error {
    Error::io("cannot look at a descriptor", &error.into())
}

/// Bytes of memory that a memfd has.
fn backed_bytes(fd: impl AsFd) -> Result<u64> {
    let blocks = fstat(&fd).map_err(unreadable)?.st_blocks;
    Ok(u64::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES))
}

fn in_units(len: usize, unit: usize) -> u64 {
    (len as u64).next_multiple_of(unit as u64)
}

/// Memory comes in pages, and in huge pages where at least half of one is used.
fn usual_unit(len: usize) -> usize {
    huge_page_bytes().filter(|&huge| len >= huge / 2).unwrap_or_else(page_size)
}

/// The least memory that the kernel gives a memfd: a huge page where the system's setting is that all shared memory has them.
fn smallest_unit() -> usize {
    let made = memfd_create("cotensor", MemfdFlags::CLOEXEC).map_err(unreadable).and_then(|fd| {
        ftruncate(&fd, 1).map_err(unreadable)?;
        fallocate(&fd, FallocateFlags::empty(), 0, 1).map_err(unreadable)?;
        backed_bytes(&fd)
    });
    made.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0).max(page_size())
}
