//! A handle of an allocation: a descriptor that keeps it, in all processes that have a duplicate.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The character device that all handles are open files of.
const DEVICE: &str = "/dev/zero";

/// A read lock of the open file description of [`DEVICE`], on the byte that the number names. Nothing is read there: the lock only
/// tells whether the description is open in any process.
pub(crate) struct Handle {
    descriptor: OwnedFd,
    number: u64,
}

impl Handle {
    /// A handle with a new number.
    pub(super) fn create() -> io::Result<Self> {
        let descriptor = OwnedFd::from(File::open(DEVICE)?);
        let mut random = [0; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
        // An offset of a file is at most i64::MAX.
        let number = u64::from_le_bytes(random) >> 2;
        lock(&descriptor, libc::F_OFD_SETLK, libc::F_RDLCK, number)?;
        Ok(Self { descriptor, number })
    }

    /// The handle that a descriptor is. None for other descriptors, also for [`DEVICE`] without a lock.
    pub(super) fn of(descriptor: OwnedFd) -> Option<Self> {
        let information = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let information = std::fs::read_to_string(information).ok()?;
        // "lock:	1: OFDLCK ADVISORY  READ -1 00:06:4 FIRST LAST"
        let line = information.lines().find(|line| line.starts_with("lock:") && line.contains("OFDLCK"))?;
        let number = line.split_whitespace().rev().nth(1)?.parse().ok()?;
        Some(Self { descriptor, number })
    }

    /// Whether any process has a handle with this number.
    pub(super) fn exists(number: u64) -> io::Result<bool> {
        let other = OwnedFd::from(File::open(DEVICE)?);
        Ok(i32::from(lock(&other, libc::F_OFD_GETLK, libc::F_WRLCK, number)?.l_type) != libc::F_UNLCK)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// The same handle by another descriptor.
    pub(super) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { descriptor: duplicate(self.descriptor.as_raw_fd())?, number: self.number })
    }
}

/// A duplicate of the descriptor that has a number in this process.
pub(crate) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call changes no memory, and fails for a number without a descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Sets or reads the lock of the byte `number`.
fn lock(descriptor: &OwnedFd, command: i32, kind: i32, number: u64) -> io::Result<libc::flock> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    // SAFETY: all fields of the structure are numbers, for which zero is valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = i16::try_from(kind).map_err(out_of_range)?;
    range.l_whence = i16::try_from(libc::SEEK_SET).map_err(out_of_range)?;
    range.l_start = i64::try_from(number).map_err(out_of_range)?;
    range.l_len = 1;
    // SAFETY: `range` outlives the call, which reads and writes it only.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), command, &raw mut range) } {
        0 => Ok(range),
        _ => Err(io::Error::last_os_error()),
    }
}
