//! Seals of memfds: what the kernel guarantees about a memfd to every process that has a descriptor of it.

use crate::mapping::huge_page_bytes;
use crate::process::create_memfd;
use cotensor_core::{Error, ErrorKind, Result, padded};
use rustix::fs::{
    FallocateFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, fstatfs,
    ftruncate,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::param::page_size;
use std::os::fd::AsFd;
use std::time::Duration;

/// The interval between attempts to seal while another mapping can write the memfd: a child between `fork` and `exec`
/// has the parent's mappings.
const SEAL_INTERVAL: Duration = Duration::from_millis(2);
const SEAL_ATTEMPTS_MAX: usize = 20;
/// The file system of memfds: `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// The unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// What the reader of a memfd can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// No process can change the bytes (`F_SEAL_WRITE`): a tensor in its own memfd.
    Immutable,
    /// Only the producer, which mapped the memfd before it was sealed, can change the bytes (`F_SEAL_FUTURE_WRITE`): a
    /// slab. An honest producer leaves a range alone while a lease on it exists. A hostile producer cannot be kept
    /// from writing.
    ProducerOnly,
    /// No process can change the length: words that two processes write.
    Length,
}

impl Guarantee {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW;
        match self {
            Guarantee::Immutable => size | SealFlags::WRITE,
            Guarantee::ProducerOnly => size | SealFlags::FUTURE_WRITE,
            Guarantee::Length => size,
        }
    }
}

/// Seals a memfd for good.
///
/// # Errors
/// `Conflict` for [`Guarantee::Immutable`] while another mapping can write it; `Io`.
pub(crate) fn seal(fd: impl AsFd, guarantee: Guarantee) -> Result<()> {
    seal_with_retry(fd, guarantee, || std::thread::sleep(SEAL_INTERVAL))
}

/// As [`seal`]; calls `wait` after each attempt that fails because another mapping can write the memfd.
pub(super) fn seal_with_retry(fd: impl AsFd, guarantee: Guarantee, mut wait: impl FnMut()) -> Result<()> {
    for _ in 0..SEAL_ATTEMPTS_MAX {
        match fcntl_add_seals(&fd, guarantee.seals() | SealFlags::SEAL) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => wait(),
            Err(error) => return Err(Error::io("cannot seal shared memory", &error.into())),
        }
    }
    let message = "cannot seal shared memory: another mapping can write it, for example that of a forked child";
    Err(Error::new(ErrorKind::Conflict, message))
}

/// Checks that `fd`, which may come from any process, is a memfd of exactly `len` bytes, that its seals keep
/// `guarantee` for good, and that it has the memory that its length takes: not less, and not more, which no budget
/// would count. Neither maps nor reads the memfd.
///
/// # Errors
/// `Refused` with the reason; `Io`.
pub fn check_sealed(fd: impl AsFd, len: usize, guarantee: Guarantee) -> Result<()> {
    // First: the kernel answers it for a file of any file system. `fstatfs` may ask another process.
    let seals = fcntl_get_seals(&fd).map_err(|_| refused("the descriptor is not a memfd"))?;
    if u64::try_from(fstatfs(&fd).map_err(fstat_error)?.f_type).ok() != Some(TMPFS) {
        return Err(refused("the descriptor is not a memfd"));
    }
    // `Immutable` includes `ProducerOnly`.
    if !seals.contains(guarantee.seals()) && !seals.contains(Guarantee::Immutable.seals()) {
        return Err(refused(&format!("it has the seals {seals:?}; {:?} are needed", guarantee.seals())));
    }
    // Seals belong to the memfd, the access mode to this descriptor: a write-only one can be neither read nor mapped.
    if fcntl_getfl(&fd).map_err(fstat_error)? & OFlags::ACCMODE == OFlags::WRONLY {
        return Err(refused("the descriptor cannot be read"));
    }
    let found = fstat(&fd).map_err(fstat_error)?;
    if padded(len).is_err() || u64::try_from(found.st_size).ok() != Some(len as u64) {
        return Err(refused(&format!("it has {} bytes, {len} were announced", found.st_size)));
    }
    // A process that accesses a hole allocates memory for it, or gets SIGBUS when none is left.
    let backed = backed_bytes(&fd)?;
    if backed < len as u64 {
        return Err(refused("not all of it is backed by memory"));
    }
    // `fallocate` can create pages beyond the end before the memfd is sealed.
    if backed > round_up(len, expected_page_bytes(len)) && backed > round_up(len, smallest_page_bytes()) {
        return Err(refused(&format!("its {len} bytes take {backed} bytes of memory")));
    }
    Ok(())
}

/// Checks that a memfd of `len` bytes, which passed [`check_sealed`], has no holes: a hole could hide pages of the same
/// size beyond the end. `fallocate` fills holes, which increases the memory that the memfd has. The seals forbid new
/// holes, so the result stays valid.
///
/// # Errors
/// `Refused` for a memfd with holes, and for a descriptor that is not open for writing; `Io` when the system has no
/// more memory.
pub fn check_no_holes(fd: impl AsFd, len: usize) -> Result<()> {
    let before = backed_bytes(&fd)?;
    // `fallocate` refuses a length of 0.
    let filled = match len {
        0 => Ok(()),
        len => retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), 0, len as u64)),
    };
    filled.map_err(|error| match error {
        Errno::BADF => refused("the descriptor is not open for writing, as memfd_create opens it"),
        error => Error::io("cannot reserve the memory of a descriptor", &error.into()),
    })?;
    if backed_bytes(&fd)? != before {
        return Err(refused("parts of it are holes, with no memory behind them"));
    }
    Ok(())
}

fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("not a published segment: {reason}"))
}

fn fstat_error(error: Errno) -> Error {
    Error::io("cannot inspect a descriptor", &error.into())
}

/// The memory of a memfd in bytes.
fn backed_bytes(fd: impl AsFd) -> Result<u64> {
    let blocks = fstat(&fd).map_err(fstat_error)?.st_blocks;
    Ok(u64::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES))
}

fn round_up(len: usize, page_bytes: usize) -> u64 {
    (len as u64).next_multiple_of(page_bytes as u64)
}

/// Huge pages where at least half of one is used, else pages.
fn expected_page_bytes(len: usize) -> usize {
    huge_page_bytes().filter(|&huge| len >= huge / 2).unwrap_or_else(page_size)
}

/// The least memory of a memfd: a huge page when the system's setting gives huge pages to all shared memory.
fn smallest_page_bytes() -> usize {
    let backed = create_memfd("cotensor").and_then(|fd| {
        ftruncate(&fd, 1).map_err(fstat_error)?;
        fallocate(&fd, FallocateFlags::empty(), 0, 1).map_err(fstat_error)?;
        backed_bytes(&fd)
    });
    backed.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0).max(page_size())
}
